//! Lengths of prompts and answers as people have them.

use super::batching::Lengths;

/// `n` requests with the lengths of ShareGPT, all times `scale`; beyond 200 the same ones come again.
pub fn sharegpt(n: usize, scale: f64) -> Vec<Lengths> {
    let scaled = |length: u16| ((f64::from(length) * scale).round() as usize).max(1);
    let lengths =
        |&(prompt, output): &(u16, u16)| Lengths { prompt: scaled(prompt), output: scaled(output) };
    SHAREGPT.iter().cycle().take(n).map(lengths).collect()
}

/// Tokens of first turns of ShareGPT and of their answers, with the vocabulary of SmolLM2: a random
/// sample, made by `tools/make_sharegpt_lengths.py`.
#[rustfmt::skip]
const SHAREGPT: [(u16, u16); 200] = [
    (13, 396), (17, 239), (12, 296), (13, 76), (101, 106), (77, 258), (35, 346), (9, 531), (30, 268), (327, 911),
    (44, 864), (16, 101), (7, 332), (420, 301), (10, 666), (115, 501), (738, 527), (68, 32), (213, 75), (10, 23),
    (831, 117), (38, 468), (566, 619), (9, 100), (19, 73), (599, 238), (6, 251), (19, 13), (8, 92), (178, 8),
    (92, 198), (6, 116), (15, 299), (55, 355), (15, 181), (37, 224), (14, 142), (8, 343), (412, 444), (18, 58),
    (20, 833), (35, 99), (86, 13), (67, 247), (16, 468), (261, 204), (10, 253), (18, 650), (38, 353), (10, 324),
    (54, 52), (12, 346), (183, 21), (20, 187), (11, 251), (27, 452), (7, 63), (332, 204), (544, 97), (200, 628),
    (478, 325), (17, 469), (430, 486), (62, 88), (19, 135), (15, 500), (21, 375), (27, 252), (25, 177), (257, 36),
    (15, 125), (95, 515), (32, 403), (19, 524), (504, 275), (5, 139), (297, 264), (56, 619), (39, 104), (46, 646),
    (52, 371), (345, 362), (104, 101), (12, 319), (13, 500), (23, 18), (7, 19), (15, 280), (23, 24), (436, 103),
    (30, 381), (43, 391), (27, 622), (222, 579), (120, 516), (73, 303), (65, 639), (17, 149), (15, 162), (42, 124),
    (12, 233), (8, 33), (246, 13), (20, 137), (290, 219), (597, 629), (369, 252), (19, 280), (37, 134), (44, 366),
    (22, 1102), (27, 111), (19, 321), (39, 184), (917, 176), (232, 278), (61, 265), (789, 279), (477, 201), (9, 262),
    (50, 688), (38, 784), (78, 421), (450, 193), (13, 367), (6, 10), (31, 174), (19, 57), (25, 340), (19, 450),
    (39, 370), (6, 238), (25, 492), (296, 491), (17, 410), (53, 395), (22, 196), (36, 53), (14, 362), (7, 212),
    (11, 104), (12, 282), (62, 35), (10, 263), (15, 332), (104, 442), (433, 741), (92, 95), (7, 196), (13, 726),
    (27, 63), (957, 377), (6, 437), (16, 23), (26, 112), (90, 302), (19, 427), (13, 235), (51, 61), (67, 226),
    (12, 20), (18, 179), (19, 414), (72, 734), (41, 530), (46, 354), (8, 81), (5, 648), (41, 370), (120, 262),
    (318, 859), (9, 422), (321, 518), (9, 130), (22, 417), (46, 213), (21, 269), (22, 19), (121, 25), (4, 9),
    (982, 431), (953, 137), (7, 246), (22, 279), (33, 324), (58, 177), (13, 649), (23, 161), (8, 151), (6, 325),
    (6, 380), (12, 498), (4, 27), (17, 288), (18, 398), (118, 89), (7, 559), (10, 303), (13, 344), (567, 4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_spread_as_people_spread_them() {
        let workload = sharegpt(200, 1.0);
        let fits = |l: &Lengths| l.prompt >= 4 && l.output >= 4 && l.prompt + l.output <= 2048;
        assert!(workload.iter().all(fits));
        let mut outputs: Vec<usize> = workload.iter().map(|lengths| lengths.output).collect();
        outputs.sort_unstable();
        // What makes static batches wait: the longest is several times the median.
        assert!(outputs[199] > 3 * outputs[100] && outputs[100] > 3 * outputs[10], "{outputs:?}");
    }

    #[test]
    fn a_workload_can_be_longer_and_smaller() {
        let (whole, tenth) = (sharegpt(200, 1.0), sharegpt(450, 0.1));
        assert_eq!((tenth[3], tenth[203]), (tenth[403], tenth[3]));
        for (whole, tenth) in whole.iter().zip(&tenth) {
            assert!(tenth.output >= 1 && tenth.output.abs_diff(whole.output / 10) <= 1);
        }
    }
}
