//! Base64 with padding, in which etcd's JSON gateway has keys and values.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let group = three.iter().fold(0, |sum, &b| sum << 8 | u32::from(b)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * i)) as usize & 63];
            text.push(if i > three.len() { '=' } else { digit.into() });
        }
    }
    text
}

pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    let mut bytes = Vec::new();
    for (i, four) in text.chunks(4).enumerate() {
        let is_last = 4 * (i + 1) >= text.len();
        let n = four.iter().position(|&b| b == b'=').filter(|_| is_last).unwrap_or(4);
        if four.len() != 4 || n < 2 || four[n..].iter().any(|&b| b != b'=') {
            return None;
        }
        let mut group = 0;
        for &digit in &four[..n] {
            group = group << 6 | DIGITS.iter().position(|&d| d == digit)? as u32;
        }
        group <<= 6 * (4 - n);
        bytes.extend_from_slice(&group.to_be_bytes()[1..n]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_rfc_4648() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!((encode(bytes.as_bytes()).as_str(), decode(text)), (text, Some(bytes.into())));
        }
        for wrong in ["Z", "Zg=", "Zg=x", "=g==", "Zg==Zg==", "Z\u{e4}=", "Zm9v "] {
            assert_eq!(decode(wrong), None, "RDZV-2: {wrong}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        /// RDZV-2
        #[test]
        fn any_text_is_bytes_or_nothing(text in "[A-Za-z0-9+/=]{0,24}|.{0,24}") {
            if let Some(bytes) = decode(&text) {
                prop_assert!(bytes.len() <= text.len());
            }
        }
    }
}
