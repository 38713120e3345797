use super::*;
use paceline_model::Cost;
use std::thread::sleep;
use tempfile::TempDir;

const B: usize = 2;
const BLOCK_BYTES: usize = 100;

/// A file of a block of the first few of a text without a salt.
const FILE_BYTES: u64 = 8 + 32 + 24 + 4 * B as u64 + BLOCK_BYTES as u64 + 32;

fn open(folder: &Path, bytes: u64, model: &str) -> Result<DiskStore, DiskError> {
    let spec = ModelSpec {
        vocab_len: 1000,
        context_len: 1000,
        kv_block_bytes: BLOCK_BYTES,
        block_len: B,
        cost: Cost::default(),
    };
    let (folder, model) = (folder.to_owned(), model.to_owned());
    DiskStore::open(&KvDisk { folder, bytes, model }, &spec)
}

fn store(folder: &TempDir) -> DiskStore {
    open(folder.path(), 1 << 20, "a").unwrap()
}

/// What the last block of these tokens is made of.
fn content(salt: &str, tokens: &[TokenId]) -> Vec<u8> {
    let sum = tokens
        .iter()
        .fold(salt.len() as u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token));
    (0..BLOCK_BYTES as u32).map(|i| (sum.wrapping_mul(i + 1) >> 3) as u8).collect()
}

/// Puts all blocks of a text, its tail first, as the memory's cache does.
fn put(store: &mut DiskStore, salt: &str, tokens: &[TokenId]) {
    for n in (1..=tokens.len() / B).rev() {
        let tokens = &tokens[..n * B];
        if store.wants(salt, tokens) {
            store.put(salt, tokens, content(salt, tokens), true);
        }
    }
}

fn has(store: &mut DiskStore, salt: &str, tokens: &[TokenId]) -> bool {
    store.get(salt, tokens).is_some_and(|bytes| {
        assert_eq!(bytes, content(salt, tokens), "a wrong block");
        true
    })
}

/// Waits until nothing is on its way to the disk any more.
fn settle(store: &DiskStore) {
    for _ in 0..1000 {
        if store.shared.index().is_settled() {
            return;
        }
        sleep(Duration::from_millis(5));
    }
    panic!("the writer stands still");
}

#[test]
fn a_restart_finds_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let text: Vec<TokenId> = (1..=9).collect();
    let mut first = store(&folder);
    put(&mut first, "s", &text);
    drop(first);
    let mut second = store(&folder);
    assert_eq!(second.n_bytes(), (1..=4).map(|n| FILE_BYTES + 1 + (n - 1) * 8).sum::<u64>());
    assert_eq!(second.find("s", &text, 0), 4);
    assert_eq!(second.find("s", &text, 3), 1);
    assert_eq!(second.find("s", &text[..7], 1), 2);
    assert_eq!(second.find("s", &[1, 2, 3, 9, 5, 6], 0), 1);
    assert_eq!(second.find("s", &text, 9), 0);
    for salt in ["", "t", "s1"] {
        assert_eq!(second.find(salt, &text, 0), 0);
    }
    assert!((1..=4).all(|n| has(&mut second, "s", &text[..n * B])));
    assert!(!second.wants("s", &text[..8]) && second.wants("s", &text[1..9]));
    drop(second);
    // Of another model nothing is found, whatever is there.
    let mut other = open(folder.path(), 1 << 20, "b").unwrap();
    assert_eq!(other.find("s", &text, 0), 0);
}

#[test]
fn a_file_that_is_torn_or_changed_anywhere_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let (salt, text) = ("salt", [7, 8, 9, 10]);
    let mut store = store(&folder);
    put(&mut store, salt, &text);
    settle(&store);
    let name = Name::new(salt, &text).path(&store.group);
    let path = folder.path().join(&name);
    let whole = fs::read(&path).unwrap();
    let torn = (0..whole.len()).map(|n| whole[..n].to_vec());
    let flipped = (0..whole.len()).flat_map(|i| {
        [0, 7].map(|bit| {
            let mut bytes = whole.clone();
            bytes[i] ^= 1 << bit;
            bytes
        })
    });
    let longer = [[&whole[..], b"x"].concat()];
    for bytes in torn.chain(flipped).chain(longer) {
        fs::write(&path, &bytes).unwrap();
        store.shared.index().insert(&name, bytes.len() as u64, SystemTime::now());
        assert_eq!(store.find(salt, &text, 1), 1);
        assert!(store.get(salt, &text).is_none());
        // It is forgotten, and can be written anew.
        assert!(!path.exists() && store.find(salt, &text, 1) == 0 && store.wants(salt, &text));
    }
    put(&mut store, salt, &text);
    settle(&store);
    assert!(has(&mut store, salt, &text));
}

#[test]
fn a_block_under_the_name_of_another_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let mut others = open(folder.path(), 1 << 20, "b").unwrap();
    put(&mut others, "", &[1, 2]);
    drop(others);
    let mut store = store(&folder);
    for (salt, tokens) in [("", [1, 2, 3, 4]), ("", [1, 2, 5, 6]), ("t", [1, 2, 3, 4])] {
        put(&mut store, salt, &tokens);
    }
    settle(&store);
    let theirs = format!("{}/", hex(&model::key("b", NUMERICS, &spec_of(&store))));
    let all: Vec<String> = store.shared.index().names().collect();
    assert_eq!(all.len(), 6);
    assert_eq!(all.iter().filter(|name| name.starts_with(&theirs)).count(), 1);
    let name = Name::new("", &[1, 2, 3, 4]).path(&store.group);
    let files: Vec<Vec<u8>> =
        all.iter().map(|name| fs::read(folder.path().join(name)).unwrap()).collect();
    for (other, bytes) in all.iter().zip(files) {
        fs::write(folder.path().join(&name), &bytes).unwrap();
        store.shared.index().insert(&name, bytes.len() as u64, SystemTime::now());
        assert_eq!(has(&mut store, "", &[1, 2, 3, 4]), *other == name, "{other}");
    }
}

fn spec_of(store: &DiskStore) -> ModelSpec {
    ModelSpec {
        vocab_len: 0,
        context_len: 0,
        kv_block_bytes: store.block_bytes,
        block_len: store.block_len,
        cost: Cost::default(),
    }
}

#[test]
fn all_that_k_and_v_depend_on_is_in_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec_of(&store(&folder));
    let key = |model, numerics, spec: &ModelSpec| model::key(model, numerics, spec);
    let keys = [
        key("a", 1, &spec),
        key("b", 1, &spec),
        key("a", 2, &spec),
        key("a", 1, &ModelSpec { block_len: 4, ..spec.clone() }),
        key("a", 1, &ModelSpec { kv_block_bytes: 99, ..spec.clone() }),
    ];
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(keys.iter().filter(|other| *other == key).count(), 1, "{i}");
    }
}

#[test]
fn a_model_is_its_configuration_and_its_weights_whatever_it_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    };
    let hash = |path: &Path| hash_of(path).unwrap();
    let (a, b, c) = (write("a.gguf", "GGUF1"), write("b.gguf", "GGUF1"), write("c.gguf", "GGUF2"));
    assert_eq!(hash(&a), hash(&b));
    assert_ne!(hash(&a), hash(&c));
    write("hf/config.json", "{}");
    write("hf/model.safetensors", "weights");
    let (hf, mut seen) = (folder.path().join("hf"), Vec::new());
    seen.push(hash(&hf));
    write("hf/README.md", "nothing to it");
    assert_eq!(hash(&hf), seen[0]);
    for (name, text) in [
        ("hf/config.json", "{1}"),
        ("hf/model.safetensors", "Weights"),
        ("hf/model-2.safetensors", ""),
        ("hf/model-2.safetensors", "weights"),
    ] {
        write(name, text);
        seen.push(hash(&hf));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
    let error = hash_of(Path::new("/no/such/model.gguf")).unwrap_err().to_string();
    assert!(error.contains("/no/such/model.gguf"), "{error}");
}

#[test]
fn what_was_used_least_recently_goes_first_and_the_limit_holds() {
    let folder = tempfile::tempdir().unwrap();
    let room = 4 * FILE_BYTES;
    let mut first = open(folder.path(), room, "a").unwrap();
    for i in 1..=4 {
        put(&mut first, "", &[i, 0]);
    }
    settle(&first);
    assert_eq!(first.n_bytes(), room);
    // 1 is looked for and 2 is to be put again: both are used.
    assert_eq!(first.find("", &[1, 0], 0), 1);
    assert!(
        !first.wants("", &[2, 0]) && has(&mut first, "", &[1, 0]) && has(&mut first, "", &[2, 0])
    );
    put(&mut first, "", &[5, 0]);
    settle(&first);
    assert_eq!(first.n_bytes(), room);
    let there = |store: &mut DiskStore| -> Vec<TokenId> {
        (1..=5).filter(|&i| has(store, "", &[i, 0])).collect()
    };
    assert_eq!(there(&mut first), [1, 2, 4, 5]);
    // Files say when they were used; a smaller limit holds from the start.
    first.find("", &[4, 0], 0);
    has(&mut first, "", &[4, 0]);
    drop(first);
    let mut second = open(folder.path(), room - 1, "a").unwrap();
    assert_eq!(there(&mut second), [2, 4, 5]);
    drop(second);
    // Another model has the same room.
    let mut other = open(folder.path(), room, "b").unwrap();
    put(&mut other, "", &[1, 2]);
    put(&mut other, "", &[3, 4]);
    drop(other);
    assert_eq!(there(&mut open(folder.path(), room, "a").unwrap()), [4, 5]);
}

#[test]
fn of_a_text_the_beginning_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), 5 * FILE_BYTES, "a").unwrap();
    let text: Vec<TokenId> = (0..8).collect();
    put(&mut store, "", &text);
    settle(&store);
    // Read from the front to the back.
    assert_eq!(store.find("", &text, 0), 4);
    assert!((1..=4).all(|n| has(&mut store, "", &text[..n * B])));
    put(&mut store, "", &[9, 9]);
    settle(&store);
    assert_eq!(store.find("", &text, 0), 3);
}

#[test]
fn leftovers_are_removed_and_what_is_not_ours_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = store(&folder);
    put(&mut first, "", &[1, 2]);
    drop(first);
    let name = Name::new("", &[1, 2]).path(&store(&folder).group);
    let path = folder.path().join(&name);
    let (whole, group) = (fs::read(&path).unwrap(), path.parent().unwrap());
    let left = path.with_extension("tmp");
    fs::write(&left, &whole[..50]).unwrap();
    let strange = [group.join("notes.tmp"), group.join("notes"), folder.path().join("photo.jpg")];
    strange.iter().for_each(|path| fs::write(path, "mine").unwrap());
    let mut second = open(folder.path(), whole.len() as u64, "a").unwrap();
    assert!(!left.exists() && has(&mut second, "", &[1, 2]));
    put(&mut second, "", &[3, 4]);
    drop(second);
    assert!(!path.exists() && strange.iter().all(|path| path.exists()));
}

#[test]
fn a_folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let first = store(&folder);
    let error = open(folder.path(), 1 << 20, "b").err().unwrap().to_string();
    assert!(error.contains("another process uses it"), "{error}");
    drop(first);
    store(&folder);
}

#[test]
fn what_cannot_be_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path(), 99, "a").err().unwrap().to_string();
    assert!(error.contains("--kv-cache-disk 99 is less than one block"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(&file, 1 << 20, "a").err().unwrap().to_string();
    assert!(error.starts_with("--kv-cache-dir ") && error.contains("file"), "{error}");
}

#[test]
fn a_disk_that_fails_is_written_to_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store(&folder);
    put(&mut store, "", &[1, 2]);
    settle(&store);
    // Where the next block's folder should be, there is a file.
    let name = Name::new("", &[3, 4]).path(&store.group);
    fs::write(folder.path().join(&name).parent().unwrap(), "").unwrap();
    store.put("", &[3, 4], content("", &[3, 4]), true);
    settle(&store);
    assert!(!store.wants("", &[5, 6]) && !has(&mut store, "", &[3, 4]));
    store.put("", &[5, 6], content("", &[5, 6]), true);
    settle(&store);
    assert_eq!(store.find("", &[5, 6], 0), 0);
    // What is there can still be read.
    assert!(has(&mut store, "", &[1, 2]));
}

#[test]
fn a_folder_that_is_taken_away_is_all_misses() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store(&folder);
    put(&mut store, "", &[1, 2, 3, 4]);
    settle(&store);
    fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(store.find("", &[1, 2, 3, 4], 0), 2);
    assert!(!has(&mut store, "", &[1, 2]) && !has(&mut store, "", &[1, 2, 3, 4]));
    assert_eq!((store.find("", &[1, 2, 3, 4], 0), store.n_bytes()), (0, 0));
}

/// Without waiting, what finds no room in the queue is dropped, and can be put later.
#[test]
fn a_full_queue_drops_blocks_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store(&folder);
    let texts = |n: u32| (0..n).map(|i| [i, i + 1]);
    for text in texts(5000) {
        store.put("", &text, content("", &text), false);
    }
    settle(&store);
    let n_there = texts(5000).filter(|text| has(&mut store, "", text)).count();
    assert!(n_there > 0);
    for text in texts(5000) {
        put(&mut store, "", &text);
    }
    settle(&store);
    assert!(texts(5000).all(|text| has(&mut store, "", &text)));
}
