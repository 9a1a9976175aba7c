//! An answer of a process manager: `name=value` words. PMI 1 puts blanks between them, PMI 2 semicolons. Pure.

use super::wire::nonsense;
use crate::error::BoardError;
use std::collections::BTreeMap;

#[derive(Debug, PartialEq, Eq)]
pub struct PmiAnswer {
    text: String,
    words: BTreeMap<String, String>,
}

impl PmiAnswer {
    /// The words of a text; `None` if one of them is not a pair.
    pub fn parse(text: &str, between: char) -> Option<PmiAnswer> {
        let pairs = text.split(between).filter(|w| !w.is_empty()).map(|w| w.split_once('='));
        let words = pairs.map(|p| p.map(|(k, v)| (k.to_string(), v.to_string()))).collect::<Option<_>>()?;
        Some(PmiAnswer { text: text.to_string(), words })
    }

    /// The same, if it is the answer to what was asked.
    pub fn expect(text: &str, between: char, command: &str) -> Result<PmiAnswer, BoardError> {
        let answer = PmiAnswer::parse(text, between).filter(|a| a.get("cmd") == Some(command));
        answer.ok_or_else(|| nonsense(text))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.words.get(name).map(String::as_str)
    }

    pub fn word(&self, name: &str) -> Result<String, BoardError> {
        self.get(name).filter(|w| !w.is_empty()).map(String::from).ok_or_else(|| nonsense(&self.text))
    }

    pub fn number(&self, name: &str) -> Result<usize, BoardError> {
        self.word(name)?.parse().map_err(|_| nonsense(&self.text))
    }

    /// `rc` is 0, or not there.
    pub fn succeeded(&self) -> Result<(), BoardError> {
        match self.get("rc").map(str::parse::<i32>) {
            None | Some(Ok(0)) => Ok(()),
            Some(Ok(_)) => Err(BoardError::Refused { answer: self.text.chars().take(200).collect() }),
            Some(Err(_)) => Err(nonsense(&self.text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_found_by_name() {
        let answer = PmiAnswer::expect("cmd=maxes keylen_max=64 rc=0", ' ', "maxes").unwrap();
        assert_eq!((answer.number("keylen_max").unwrap(), answer.get("x")), (64, None));
        answer.succeeded().unwrap();
        let refused = PmiAnswer::expect("cmd=kvs-put-response;rc=14;", ';', "kvs-put-response").unwrap();
        assert!(matches!(refused.succeeded(), Err(BoardError::Refused { .. })));
        assert!(
            matches!(PmiAnswer::expect("cmd=maxes", ' ', "other"), Err(BoardError::Nonsense { .. })),
            "RDZV-2"
        );
        assert!(PmiAnswer::parse("cmd=maxes word", ' ').is_none(), "RDZV-2");
    }

    proptest! {
        /// RDZV-2
        #[test]
        fn any_text_is_words_or_an_error(text in "(cmd=[a-z]{1,5})?([ ;][a-z]{1,4}=[ -~]{0,20}){0,5}|.{0,80}") {
            for between in [' ', ';'] {
                if let Ok(answer) = PmiAnswer::expect(&text, between, "get") {
                    let _ = (answer.number("rc"), answer.word("rc"), answer.succeeded());
                }
            }
        }
    }
}
