//! The id of a message that is too long to be held.

use super::message::whole_number;

/// How much of a name or a value is looked at. Ids of the relay's own are shorter.
const MOST: usize = 32;

/// Finds the id of a message that comes in parts. It holds a few bytes, and assumes that the
/// message is JSON.
#[derive(Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// What has been read of the current name or value of the message's own members.
    token: Vec<u8>,
    is_id: bool,
    id: Option<u64>,
}

impl Scan {
    pub(super) fn read(&mut self, part: &[u8]) {
        for byte in part {
            self.step(*byte);
        }
    }

    /// The id, if it is a whole number. The last one counts, as in most parsers.
    pub(super) const fn id(&self) -> Option<u64> {
        self.id
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return self.keep(byte);
        }
        match byte {
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.end_of_member();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => self.end_of_member(),
            b':' if self.depth == 1 => {
                self.is_id = self.token == b"\"id\"";
                self.token.clear();
            }
            _ if byte.is_ascii_whitespace() => {}
            _ => {
                self.in_string = byte == b'"';
                self.keep(byte);
            }
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.depth == 1 && self.token.len() < MOST {
            self.token.push(byte);
        }
    }

    fn end_of_member(&mut self) {
        if self.depth != 1 {
            return;
        }
        if self.is_id {
            let value = serde_json::from_slice(&self.token).ok();
            self.id = value.as_ref().and_then(whole_number);
        }
        self.is_id = false;
        self.token.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_wherever_it_stands_and_however_the_message_is_cut() {
        for (message, expected) in [
            (r#"{"jsonrpc":"2.0","id":12,"result":{"id":3}}"#, Some(12)),
            (
                r#"{ "result" : {"a":["id",{"id":3}],"b":"\"id\":4,"} , "id" : 12 }"#,
                Some(12),
            ),
            (r#"{"error":"\\","id":12}"#, Some(12)),
            (r#"{"id":1,"id":12}"#, Some(12)),
            (r#"{"id":12.0}"#, Some(12)),
            (r#"{"id":1.2e1}"#, Some(12)),
            (r#"{"id":12.5}"#, None),
            (r#"{"id":"12"}"#, Some(12)),
            (r#"{"id":"a"}"#, None),
            (r#"{"id":-1}"#, None),
            (r#"{"params":{"id":12}}"#, None),
            (r#"["id",12]"#, None),
        ] {
            for size in [1, 2, 7, message.len()] {
                let mut scan = Scan::default();
                for part in message.as_bytes().chunks(size) {
                    scan.read(part);
                }
                assert_eq!(scan.id(), expected, "{message} in parts of {size}");
            }
        }
    }
}
