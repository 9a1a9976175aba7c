//! The address at which a rank accepts links, as it is sent to the other ranks.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The longest name of a transport and the longest address: Unix socket names have 108 bytes.
const MAX_NAME: usize = 16;
const MAX_ADDRESS: usize = 128;
/// A rank listens at no more addresses than this.
const MAX_ADDRESSES: usize = 16;

/// A transport's name, and an address that means something to it. Short printable words, also when they come from another rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(String, String)")]
pub struct LinkAddress {
    transport: String,
    address: String,
}

/// What no transport would have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a link's address must be a name and an address, both short and printable")]
pub struct BadAddress;

impl LinkAddress {
    pub fn new(transport: &str, address: &str) -> Result<LinkAddress, BadAddress> {
        (transport.to_string(), address.to_string()).try_into()
    }

    pub fn transport(&self) -> &str {
        &self.transport
    }

    pub fn address(&self) -> &str {
        &self.address
    }
}

impl TryFrom<(String, String)> for LinkAddress {
    type Error = BadAddress;

    fn try_from((transport, address): (String, String)) -> Result<LinkAddress, BadAddress> {
        let is_word = |text: &str, most| {
            (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match is_word(&transport, MAX_NAME) && is_word(&address, MAX_ADDRESS) {
            true => Ok(LinkAddress { transport, address }),
            false => Err(BadAddress),
        }
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, self.address)
    }
}

/// Decodes the addresses of one rank; more than any rank has are an error.
pub fn few<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LinkAddress>, D::Error> {
    let addresses = Vec::deserialize(from)?;
    match addresses.len() {
        0..=MAX_ADDRESSES => Ok(addresses),
        n => Err(serde::de::Error::custom(format!("a rank with {n} addresses"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Told(#[serde(deserialize_with = "few")] Vec<LinkAddress>);

    #[test]
    fn addresses_from_the_wire_are_few_short_and_printable() {
        let read = |of: &[(&str, &str)]| postcard::from_bytes::<Told>(&postcard::to_stdvec(&of).unwrap());
        let two = [("tcp", "[::1]:4000"), ("unix", "@phalanx-0")];
        let expected = two.map(|(t, a)| LinkAddress::new(t, a).unwrap()).to_vec();
        assert_eq!(read(&two).unwrap(), Told(expected));
        let long = "x".repeat(MAX_ADDRESS + 1);
        for bad in
            [("", "x"), ("x", ""), ("tcp", &long[..]), (&long[..17], "x"), ("tcp", "\x1b[2J"), ("a b", "x")]
        {
            assert!(read(&[bad]).is_err(), "{bad:?}");
        }
        assert!(read(&[two[0]; MAX_ADDRESSES]).is_ok() && read(&[two[0]; MAX_ADDRESSES + 1]).is_err());
    }
}
