//! What rank 0 says of itself on a board, as text of hexadecimal digits, addresses and the characters `/` and `,`.

use super::encoding::{hex, unhex};
use crate::secret::LEN;
use std::net::SocketAddr;

/// More addresses than a host has.
const MAX_ADDRESSES: usize = 64;

/// How the ranks get the secret of their world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The user gave one to every rank.
    Given,
    /// This rank's public half of a key exchange.
    Exchange([u8; LEN]),
}

/// What rank 0 says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Of this meeting alone: keeps worlds with one secret apart.
    pub id: [u8; 16],
    pub trust: Trust,
    /// Where it serves the hub, the likeliest first.
    pub addresses: Vec<SocketAddr>,
}

impl Trust {
    pub fn to_text(self) -> String {
        match self {
            Trust::Given => "given".into(),
            Trust::Exchange(public) => hex(&public),
        }
    }

    pub fn parse(text: &str) -> Option<Trust> {
        if text == "given" { Some(Trust::Given) } else { unhex(text).map(Trust::Exchange) }
    }
}

impl Announcement {
    /// As text of at most this length; addresses that do not fit are left out, the last first.
    pub fn to_text(&self, longest: usize) -> String {
        let mut text = format!("{}/{}/", hex(&self.id), self.trust.to_text());
        for (i, address) in self.addresses.iter().take(MAX_ADDRESSES).enumerate() {
            let next = format!("{}{address}", if i == 0 { "" } else { "," });
            if i > 0 && text.len() + next.len() > longest {
                break;
            }
            text.push_str(&next);
        }
        text
    }

    pub fn parse(text: &str) -> Option<Announcement> {
        let mut parts = text.split('/');
        let (id, trust, addresses) = (unhex(parts.next()?)?, Trust::parse(parts.next()?)?, parts.next()?);
        let addresses: Vec<SocketAddr> =
            addresses.split(',').take(MAX_ADDRESSES).map(|a| a.parse().ok()).collect::<Option<_>>()?;
        parts.next().is_none().then_some(Announcement { id, trust, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn announced(n: usize) -> Announcement {
        let addresses = (0..n).map(|i| ([10, 0, 0, i as u8], 4000).into()).collect();
        Announcement { id: [7; 16], trust: Trust::Exchange([9; LEN]), addresses }
    }

    #[test]
    fn it_comes_back_and_keeps_to_the_length() {
        let two = Announcement { trust: Trust::Given, ..announced(2) };
        assert_eq!(two.to_text(1024), format!("{}/given/10.0.0.0:4000,10.0.0.1:4000", "07".repeat(16)));
        assert_eq!(Announcement::parse(&two.to_text(1024)), Some(two));
        let many = announced(60);
        let text = many.to_text(256);
        assert!(text.len() <= 256 && text.len() > 256 - 16, "{}", text.len());
        let fewer = Announcement::parse(&text).unwrap();
        assert_eq!(fewer.addresses, many.addresses[..fewer.addresses.len()]);
        assert_eq!(Announcement::parse(&announced(60).to_text(8000)), Some(announced(60)));
    }

    proptest! {
        /// RDZV-2
        #[test]
        fn any_text_is_an_announcement_or_nothing(text in "([0-9a-f]{30,34}/(given|[0-9a-f]{62,66})/)?[0-9a-f.:,/\\[\\]]{0,60}") {
            if let Some(found) = Announcement::parse(&text) {
                prop_assert!(found.addresses.len() <= MAX_ADDRESSES);
                prop_assert_eq!(Announcement::parse(&found.to_text(usize::MAX)), Some(found));
            }
        }
    }
}
