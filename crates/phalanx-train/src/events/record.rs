//! The frame of one record in an event file: length, checksum of the length, data, checksum of the data; all little-endian.

use super::message::EventMessage;
use prost::Message;

/// The event as a record.
pub(super) fn record(event: &EventMessage) -> Vec<u8> {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked(crc32c::crc32c(&length)).to_le_bytes());
    record.extend(&data);
    record.extend(masked(crc32c::crc32c(&data)).to_le_bytes());
    record
}

/// The format masks its checksums, because checksums of data that contain checksums detect less.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::{
        super::message::{Histogram, Shown, Summary, SummaryValue, What},
        *,
    };

    fn summary(values: Vec<(&str, Shown)>) -> Option<What> {
        let value = |(tag, shown): (&str, Shown)| SummaryValue { tag: tag.into(), shown: Some(shown) };
        Some(What::Summary(Summary { values: values.into_iter().map(value).collect() }))
    }

    fn hex(event: &EventMessage) -> String {
        record(event).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// EVENT-1. The expected bytes are those that tensorboard 2.21 makes of the same events.
    #[test]
    fn records_have_the_bytes_that_tensorboard_writes() {
        let version = What::FileVersion("brain.Event:2".into());
        let version = EventMessage { wall_time: 1.5, step: 0, what: Some(version) };
        assert_eq!(
            hex(&version),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
        );
        let scalars = summary(vec![("loss", Shown::Simple(0.5)), ("zero", Shown::Simple(0.0))]);
        assert_eq!(
            hex(&EventMessage { wall_time: 1234.25, step: 7, what: scalars }),
            "2700000000000000bbe1b1460900000000004993401007\
             2a1a0a0b0a046c6f7373150000003f0a0b0a047a65726f15000000007bdf62d2"
        );
        let histogram = Histogram {
            min: -1.0,
            max: 3.0,
            n: 3.0,
            sum: 2.0,
            sum_squares: 10.0,
            limits: vec![1.0, 3.0],
            counts: vec![1.0, 2.0],
        };
        let what = summary(vec![("w", Shown::Histogram(histogram))]);
        assert_eq!(
            hex(&EventMessage { wall_time: 2.0, step: 300, what }),
            "6600000000000000723b876a09000000000000004010ac022a580a560a01772a51\
             09000000000000f0bf110000000000000840190000000000000840210000000000000040290000000000002440\
             3210000000000000f03f00000000000008403a10000000000000f03f0000000000000040cb6bf370"
        );
    }
}
