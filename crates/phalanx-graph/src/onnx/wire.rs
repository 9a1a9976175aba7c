//! The fields of an encoded message, one after the other, as they lie in the file. Copies nothing.

use super::error::OnnxError;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content<'a> {
    Number(u64),
    /// A text, a message or packed numbers.
    Bytes(&'a [u8]),
    /// Four or eight bytes.
    Fixed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field<'a> {
    pub tag: u64,
    pub content: Content<'a>,
    /// The whole field, with its key.
    pub whole: &'a [u8],
    /// Where its content begins, counted from the beginning of the file.
    pub at: usize,
}

/// Walks the fields of a message. After an error there are no more.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// Of a message that begins at this place of the file.
    pub fn new(message: &'a [u8], at: usize) -> Fields<'a> {
        Fields { rest: message, at }
    }

    fn next_field(&mut self) -> Result<Field<'a>, &'static str> {
        let (whole, begin) = (self.rest, self.at);
        let key = self.varint()?;
        let (tag, kind) = (key >> 3, key & 7);
        if tag == 0 {
            return Err("a field has the number 0");
        }
        let mut at = self.at;
        let content = match kind {
            0 => Content::Number(self.varint()?),
            1 => self.take(8).map(|_| Content::Fixed)?,
            5 => self.take(4).map(|_| Content::Fixed)?,
            2 => {
                let n = self.varint()?;
                at = self.at;
                Content::Bytes(self.take(n)?)
            }
            _ => return Err("a field of a kind that the format does not have"),
        };
        Ok(Field { tag, content, whole: &whole[..self.at - begin], at })
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8], &'static str> {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let taken = self.rest.get(..n).ok_or("a field is longer than what is left")?;
        (self.rest, self.at) = (&self.rest[n..], self.at + n);
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0;
        for i in 0..10 {
            let byte = self.take(1).map_err(|_| "a number is cut off")?[0];
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is longer than ten bytes")
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, OnnxError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.next_field();
        Some(field.map_err(|what| {
            self.rest = &[];
            OnnxError::Malformed { at: self.at, what }
        }))
    }
}

/// Appends a field of bytes.
pub fn put(out: &mut Vec<u8>, tag: u64, bytes: &[u8]) {
    varint(out, tag << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whole_and_lengths_are_checked_first() {
        let mut message = vec![0x08, 0x96, 0x01];
        put(&mut message, 2, b"abc");
        message.extend([0x1d, 1, 2, 3, 4]);
        let fields: Vec<Field<'_>> = Fields::new(&message, 10).collect::<Result<_, _>>().unwrap();
        assert_eq!(fields.iter().map(|f| f.tag).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(fields[0].content, Content::Number(150));
        assert_eq!((fields[1].content, fields[1].at), (Content::Bytes(b"abc"), 15));
        assert_eq!(fields.iter().flat_map(|f| f.whole).copied().collect::<Vec<_>>(), message);
        for n in [1, 2, 4, 5, 7, 9, 12] {
            let last = Fields::new(&message[..n], 0).last().unwrap();
            assert!(matches!(last, Err(OnnxError::Malformed { .. })), "{n}: {last:?}");
        }
        // A length of 2^63, far beyond what is there.
        let long = [0x12, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0];
        assert!(Fields::new(&long, 0).next().unwrap().is_err(), "ONNX-1");
    }
}
