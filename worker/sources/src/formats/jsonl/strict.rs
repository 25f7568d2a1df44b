//! Finds what the decoder of arrow-json accepts although it is not JSON: missing and additional commas, and decimal points without a
//! digit on both sides. A damaged list would arrive as a shorter list.

/// The last token of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Open,
    Value,
    Comma,
    Colon,
}

/// Checks the commas and decimal points of the first value of a line. The decoder finds all other defects.
///
/// # Errors
/// Returns a sentence with the position in the line, from 0.
pub(super) fn check(line: &[u8]) -> Result<(), String> {
    let mut last = Token::Open;
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = line.get(at) {
        let start = at;
        at += 1;
        last = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b',' if last == Token::Value => Token::Comma,
            b',' => return Err(format!("there is an additional comma at byte {start} of the line")),
            b':' => Token::Colon,
            b'}' | b']' if last == Token::Comma => {
                return Err(format!("there is an additional comma before byte {start} of the line"));
            }
            b'}' | b']' if depth <= 1 => return Ok(()),
            b'}' | b']' => {
                depth -= 1;
                Token::Value
            }
            _ if last == Token::Value => {
                return Err(format!("a comma is missing at byte {start} of the line"));
            }
            b'{' | b'[' => {
                depth += 1;
                Token::Open
            }
            b'"' => {
                at = text_end(line, at);
                Token::Value
            }
            _ => {
                let is_end = |byte: &u8| {
                    matches!(byte, b',' | b':' | b'}' | b']' | b'{' | b'[' | b'"')
                        || byte.is_ascii_whitespace()
                };
                at = line[at..].iter().position(is_end).map_or(line.len(), |length| at + length);
                if has_bare_point(&line[start..at]) {
                    return Err(format!(
                        "the number at byte {start} of the line has a point without digits on both sides"
                    ));
                }
                Token::Value
            }
        };
    }
    Ok(())
}

/// Returns the position after the closing quote of a text, or the end of the line.
fn text_end(line: &[u8], mut at: usize) -> usize {
    while let Some(found) = memchr::memchr2(b'"', b'\\', &line[at..]) {
        at += found + 1;
        if line[at - 1] == b'"' {
            return at;
        }
        at = line.len().min(at + 1);
    }
    line.len()
}

/// Whether the number has a point without digits on both sides.
pub(super) fn has_bare_point(number: &[u8]) -> bool {
    let is_digit =
        |place: Option<usize>| place.and_then(|place| number.get(place)).is_some_and(u8::is_ascii_digit);
    let point = number.iter().position(|&byte| byte == b'.');
    point.is_some_and(|point| !is_digit(point.checked_sub(1)) || !is_digit(Some(point + 1)))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn commas_and_points_are_as_in_json() {
        let accepted = [
            r#"{"a":[1,2,3],"b":{"c":"x,,y\\","d":[]},"e":-0.5e+3, "f" : [ {} , null ] }"#,
            r#"{"text":"a \" , ]","b":[[],[[1.25]]]}"#,
            "{}",
        ];
        assert_eq!(check(br#"{"a":1} {"b":2}"#), Ok(()), "the decoder reports the second object");
        for line in accepted {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
            assert_eq!(check(line.as_bytes()), Ok(()), "{line}");
        }
        let refused = [
            (r#"{"a":[1,,3]}"#, "an additional comma at byte 8 "),
            (r#"{"a":[,1]}"#, "an additional comma at byte 6 "),
            (r#"{"a":[1,]}"#, "an additional comma before byte 8 "),
            (r#"{"a":1,}"#, "an additional comma before byte 7 "),
            (r#"{,"a":1}"#, "an additional comma at byte 1 "),
            (r#"{"a":,1}"#, "an additional comma at byte 5 "),
            (r#"{"a":[1 2]}"#, "a comma is missing at byte 8 "),
            (r#"{"a":["x""y"]}"#, "a comma is missing at byte 9 "),
            (r#"{"a":1 "b":2}"#, "a comma is missing at byte 7 "),
            (r#"{"a":[1]"b":2}"#, "a comma is missing at byte 8 "),
            (r#"{"a":5.}"#, "the number at byte 5 "),
            (r#"{"a":-.5}"#, "the number at byte 5 "),
            (r#"{"a":1.e5}"#, "the number at byte 5 "),
        ];
        for (line, reason) in refused {
            assert!(serde_json::from_str::<Value>(line).is_err(), "{line}");
            let error = check(line.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn json_is_accepted(bytes in proptest::collection::vec(proptest::sample::select(br#"[]{}:,"1.a \"#.to_vec()), 0..14)) {
            let line = [br#"{"a":["#.as_slice(), &bytes, b"]}"].concat();
            if serde_json::from_slice::<Value>(&line).is_ok() {
                proptest::prop_assert_eq!(check(&line), Ok(()));
            }
        }
    }
}
