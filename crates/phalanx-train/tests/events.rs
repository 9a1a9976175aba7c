//! Event files, read back by a reader that shares no code with the writer.

use phalanx_train::events::{EventError, EventWriter};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("phalanx-events-{test}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One event of a file.
#[derive(Clone, Debug, Default, PartialEq)]
struct Read {
    wall_time: f64,
    step: u64,
    version: Option<String>,
    scalars: Vec<(String, f32)>,
    histograms: Vec<String>,
}

/// The CRC of Castagnoli, bit by bit, and masked as in the format.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The next `n` bytes.
fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(n);
    *bytes = rest;
    first
}

fn number(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// The fields of a message: number, and bytes or the number as bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = number(&mut bytes);
        let content = match key & 7 {
            0 => number(&mut bytes).to_le_bytes().to_vec(),
            1 => take(&mut bytes, 8).to_vec(),
            2 => {
                let n = number(&mut bytes) as usize;
                take(&mut bytes, n).to_vec()
            }
            5 => take(&mut bytes, 4).to_vec(),
            kind => panic!("wire type {kind}"),
        };
        found.push((key >> 3, content));
    }
    found
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

fn event(bytes: &[u8]) -> Read {
    let mut read = Read::default();
    for (field, content) in fields(bytes) {
        match field {
            1 => read.wall_time = f64::from_le_bytes(content.try_into().expect("8 bytes")),
            2 => read.step = u64::from_le_bytes(content.try_into().expect("8 bytes")),
            3 => read.version = Some(text(content)),
            5 => {
                for (_, value) in fields(&content) {
                    let mut tag = String::new();
                    for (field, content) in fields(&value) {
                        match field {
                            1 => tag = text(content),
                            2 => {
                                let value = f32::from_le_bytes(content.try_into().expect("4 bytes"));
                                read.scalars.push((tag.clone(), value));
                            }
                            5 => read.histograms.push(tag.clone()),
                            field => panic!("field {field} of a value"),
                        }
                    }
                }
            }
            field => panic!("field {field} of an event"),
        }
    }
    read
}

fn read(path: &Path) -> Vec<Read> {
    let bytes = fs::read(path).expect("the file is there");
    let mut rest = &bytes[..];
    let mut events = Vec::new();
    while !rest.is_empty() {
        let length = take(&mut rest, 8);
        assert_eq!(take(&mut rest, 4), checksum(length).to_le_bytes());
        let data = take(&mut rest, u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize);
        assert_eq!(take(&mut rest, 4), checksum(data).to_le_bytes());
        events.push(event(data));
    }
    events
}

/// EVENT-1.
#[test]
fn events_are_read_back_after_a_flush_and_after_a_drop() {
    let folder = Folder::new("back");
    let mut writer = EventWriter::create(&folder.0.join("deep/er")).expect("created");
    let path = writer.path().to_path_buf();
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("events.out.tfevents.1") || name.starts_with("events.out.tfevents.2"), "{name}");
    let first = read(&path);
    assert_eq!(
        (first.len(), first[0].version.as_deref()),
        (1, Some("brain.Event:2")),
        "as soon as it is there"
    );

    writer.scalar(3, "loss", 0.25).expect("written");
    writer.scalar(300, "loss", f32::INFINITY).expect("written");
    assert_eq!(read(&path), first, "buffered");
    writer.flush().expect("flushed");
    assert_eq!(read(&path).len(), 3);
    writer.scalars(1 << 40, &[("a", 1.0), ("ü/b", -0.0)]).expect("written");
    writer.histogram(7, "weights", &[1.0, 2.0]).expect("written");
    drop(writer);

    let events = read(&path);
    let scalars: Vec<_> = events.iter().map(|e| (e.step, e.scalars.clone())).collect();
    assert_eq!(
        scalars,
        [
            (0, vec![]),
            (3, vec![("loss".into(), 0.25)]),
            (300, vec![("loss".into(), f32::INFINITY)]),
            (1 << 40, vec![("a".into(), 1.0), ("ü/b".into(), -0.0)]),
            (7, vec![]),
        ]
    );
    assert_eq!(events[4].histograms, ["weights"]);
    assert!(events.windows(2).all(|pair| pair[0].wall_time <= pair[1].wall_time));
    assert!(events[0].wall_time > 1.7e9, "seconds since 1970");
}

/// EVENT-2.
#[test]
fn writers_of_one_folder_have_files_of_their_own() {
    let folder = Folder::new("own");
    let mut writers: Vec<_> = (0..5).map(|_| EventWriter::create(&folder.0).expect("created")).collect();
    for (step, writer) in (1..).zip(&mut writers) {
        writer.scalar(step, "which", 1.0).expect("written");
    }
    drop(writers);
    let files = fs::read_dir(&folder.0).expect("the folder is there").map(|e| e.expect("an entry").path());
    let mut steps: Vec<u64> = files.flat_map(|path| read(&path)).map(|e| e.step).collect();
    steps.sort_unstable();
    assert_eq!(steps, [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]);
}

#[test]
fn errors_name_the_folder_the_file_and_the_tag() {
    let folder = Folder::new("errors");
    fs::create_dir_all(&folder.0).expect("created");
    let file = folder.0.join("file");
    fs::write(&file, "").expect("written");
    let refused = EventWriter::create(&file).expect_err("it is a file");
    assert!(refused.to_string().starts_with(&format!("cannot create an event file in {}", file.display())));

    let mut writer = EventWriter::create(&folder.0).expect("created");
    let refused = writer.histogram(1, "gradient", &[1.0, f32::NAN, f32::INFINITY]).expect_err("not finite");
    assert!(matches!(&refused, EventError::NotFinite { tag, n: 2 } if tag == "gradient"), "{refused}");
}
