//! Bytes as hexadecimal digits, which every board takes.

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Exactly `N` bytes.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_come_back(bytes: [u8; 16]) {
            prop_assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        }

        /// RDZV-2
        #[test]
        fn any_text_is_bytes_or_nothing(text in ".{0,40}") {
            if let Some(bytes) = unhex::<16>(&text) {
                prop_assert_eq!(hex(&bytes), text.to_lowercase());
            }
        }
    }
}
