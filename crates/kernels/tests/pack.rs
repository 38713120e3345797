//! Packing never panics on what a file may hold, and says what is wrong.

use paceline_kernels::{Cpu, DType, Isa, PackError, Packer, QMat, quant};
use proptest::prelude::*;

fn any_dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL)
}

/// A size: small, or absurd.
fn any_size() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..70, (0usize..5).prop_map(|n| n * 256), any::<usize>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_shape_and_bytes_pack_or_are_refused(
        dtype in any_dtype(),
        n_out in any_size(),
        n_in in any_size(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        float in any::<bool>(),
    ) {
        let _ = Packer::new(None).float(float).pack(dtype, n_out, n_in, &bytes);
    }

    #[test]
    fn random_bytes_of_the_right_size_pack_or_hold_a_bad_number(
        dtype in any_dtype(),
        n_out in 1usize..70,
        n_blocks in 1usize..4,
        seed in prop::collection::vec(any::<u8>(), 1..64),
        float in any::<bool>(),
    ) {
        let n_in = n_blocks * dtype.info().block_len;
        let n_bytes = dtype.n_bytes(n_out * n_in).unwrap();
        let bytes: Vec<u8> = seed.iter().copied().cycle().take(n_bytes).collect();
        match Packer::new(None).float(float).pack(dtype, n_out, n_in, &bytes) {
            Ok(weight) => {
                let mut expected = vec![0.0; n_out * n_in];
                quant::decode(dtype, &bytes, &mut expected).unwrap();
                let mut row = vec![0.0; n_in];
                for (i, expected) in expected.chunks_exact(n_in).enumerate() {
                    weight.row(i, &mut row);
                    prop_assert!(row.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()));
                }
            }
            Err(PackError::NotFinite { row }) => prop_assert!(row < n_out),
            Err(PackError::Unsupported(_)) => prop_assert!(!quant::computes(dtype)),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_refusal_says_what_is_wrong() {
    let refusal = |dtype, n_out, n_in, bytes: &[u8]| {
        QMat::pack(dtype, n_out, n_in, bytes).unwrap_err().to_string()
    };
    let unsupported = refusal(DType::IQ2_XS, 1, 256, &[0; 74]);
    assert!(unsupported.contains("IQ2_XS") && unsupported.contains("Q4_K"), "{unsupported}");
    assert!(refusal(DType::Q4_0, 0, 32, &[]).contains("0 x 32"));
    assert!(refusal(DType::Q4_K, 1, 100, &[]).contains("256 values a block"));
    assert!(refusal(DType::Q4_0, 2, 32, &[0; 35]).contains("35 bytes"));
    assert!(refusal(DType::F32, usize::MAX, usize::MAX, &[]).contains("do not fill"));
}

#[test]
fn a_number_that_is_not_finite_is_refused_by_row() {
    let infinity = half::f16::INFINITY.to_le_bytes();
    let nan = half::f16::NAN.to_le_bytes();
    // Type, offset of an f16 in the block.
    let places = [
        (DType::F16, 0),
        (DType::Q8_0, 0),
        (DType::Q4_0, 0),
        (DType::Q4_1, 0),
        (DType::Q4_1, 2),
        (DType::Q5_0, 0),
        (DType::Q5_1, 0),
        (DType::Q5_1, 2),
        (DType::IQ4_NL, 0),
        (DType::Q2_K, 80),
        (DType::Q2_K, 82),
        (DType::Q3_K, 108),
        (DType::Q4_K, 0),
        (DType::Q4_K, 2),
        (DType::Q5_K, 0),
        (DType::Q5_K, 2),
        (DType::Q6_K, 208),
        (DType::IQ4_XS, 0),
    ];
    let cpu = Cpu::new(Isa::Scalar, 2);
    for (dtype, at) in places {
        for bad in [infinity, nan] {
            let info = dtype.info();
            let row_bytes = 3 * info.block_bytes;
            let mut bytes = vec![0; 70 * row_bytes];
            for row in [40, 66] {
                bytes[row * row_bytes + 2 * info.block_bytes + at..][..2].copy_from_slice(&bad);
            }
            for cpu in [None, Some(&cpu)] {
                let packed = Packer::new(cpu).pack(dtype, 70, 3 * info.block_len, &bytes);
                assert!(matches!(packed, Err(PackError::NotFinite { row: 40 })), "{dtype} at {at}");
            }
        }
    }
    for (dtype, bad) in [(DType::F32, &f32::NAN.to_le_bytes()[..]), (DType::BF16, &[0x80, 0xff])] {
        let error = QMat::pack(dtype, 1, 1, bad).unwrap_err();
        assert!(matches!(error, PackError::NotFinite { row: 0 }), "{dtype}: {error}");
    }
}

#[test]
fn an_exponent_that_is_too_large_is_refused() {
    let block = |e: u8| [&[e][..], &[0; 16]].concat();
    assert!(QMat::pack(DType::MXFP4, 1, 32, &block(252)).is_ok());
    for e in 253..=255 {
        let error = QMat::pack(DType::MXFP4, 1, 32, &block(e)).unwrap_err();
        assert!(matches!(error, PackError::NotFinite { row: 0 }), "{error}");
    }
}

#[test]
fn a_packer_on_threads_packs_the_same() {
    let bytes: Vec<u8> = (0..100 * 96 / 32 * 18).map(|i| (i * 31 % 120) as u8).collect();
    let alone = QMat::pack(DType::Q4_0, 100, 96, &bytes).unwrap();
    let cpu = Cpu::new(Isa::Scalar, 3);
    let mut packer = Packer::new(Some(&cpu));
    for _ in 0..3 {
        let weight = packer.pack(DType::Q4_0, 100, 96, &bytes).unwrap();
        assert_eq!(weight.n_bytes(), 4 * 3 * 576);
        let (mut a, mut b) = ([0.0; 96], [0.0; 96]);
        for i in 0..100 {
            weight.row(i, &mut a);
            alone.row(i, &mut b);
            assert_eq!(a, b, "row {i}");
        }
    }
}
