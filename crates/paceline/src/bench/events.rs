//! [`Events`]: the data of server-sent events, out of bytes as they come.

/// The longest event, in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// A stream of events that is being read.
#[derive(Default)]
pub(super) struct Events {
    /// Bytes of the line that is not complete yet.
    line: Vec<u8>,
    /// The data of the event that is not complete yet.
    data: Option<Vec<u8>>,
}

impl Events {
    /// Takes more bytes and hands the data of each event that they complete to `event`. Comments,
    /// which keep a connection alive, and other fields than `data` are passed over.
    pub fn push(&mut self, bytes: &[u8], mut event: impl FnMut(&[u8])) -> Result<(), String> {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    event(&data);
                }
            } else if let Some(data) = line.strip_prefix(b"data:") {
                let data = data.strip_prefix(b" ").unwrap_or(data);
                match &mut self.data {
                    Some(lines) => {
                        lines.push(b'\n');
                        lines.extend_from_slice(data);
                    }
                    None => self.data = Some(data.to_vec()),
                }
            }
        }
        match self.line.len() + self.data.as_ref().map_or(0, Vec::len) > MAX_EVENT_BYTES {
            true => Err(format!("an event of more than {MAX_EVENT_BYTES} bytes")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[&[u8]]) -> Vec<String> {
        let (mut events, mut all) = (Events::default(), Vec::new());
        for part in parts {
            let event = |data: &[u8]| all.push(String::from_utf8(data.to_vec()).unwrap());
            events.push(part, event).unwrap();
        }
        all
    }

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let text = b": hello\n\ndata: {\"a\":1}\r\n\r\nevent: x\nid: 3\ndata:two\ndata: lines\n\n\
                     retry: 5\n\ndata: [DONE]\n\ndata: no end";
        let expected = ["{\"a\":1}", "two\nlines", "[DONE]"];
        assert_eq!(read(&[text]), expected);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&bytes), expected);
        for cut in 1..text.len() {
            assert_eq!(read(&[&text[..cut], &text[cut..]]), expected);
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut events = Events::default();
        let mebibyte = vec![b'x'; 1 << 20];
        let mut push = || events.push(&mebibyte, |_| ());
        assert!((0..16).all(|_| push().is_ok()));
        assert!(push().unwrap_err().contains("16777216 bytes"));
    }
}
