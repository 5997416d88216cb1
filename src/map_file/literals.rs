//! Parses the literals of map rows: numbers, addresses, prefixes and MACs, as 32-bit words.
//!
//! Packet bytes become words as `load_be32` returns them, so that literals equal what a filter
//! loads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis_core::map::fields::FieldType;

/// The words of a literal, at most five.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    words: [u32; 5],
    count: usize,
}

impl Words {
    fn new(words: &[u32]) -> Words {
        let mut all = [0; 5];
        all[..words.len()].copy_from_slice(words);
        Words { words: all, count: words.len() }
    }

    /// Returns the words.
    pub fn as_slice(&self) -> &[u32] {
        &self.words[..self.count]
    }
}

/// Why a text is not a literal, or not one for its place. The messages continue "`TEXT` …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LiteralError {
    #[error("is a prefix, which is valid only as the key of an `lpm` map")]
    UnexpectedPrefix,
    #[error("is neither an IPv6 address nor a MAC")]
    NotIpv6OrMac,
    #[error("is not an IPv4 address")]
    NotIpv4,
    #[error("is more than {0} bits can hold")]
    TooLarge(u32),
    #[error("is empty")]
    Empty,
    #[error("is neither a number nor an address")]
    NotANumber,
    #[error("is not a prefix of an IPv4 or IPv6 address")]
    NotAPrefix,
    #[error("is not a prefix: its length is a number from 0 to {0}")]
    PrefixLength(u64),
    #[error("is of IPv4, but the keys of the map `{map}` are of IPv6 (key=4)")]
    Ipv4ForIpv6 { map: String },
    #[error("is of IPv6, but the keys of the map `{map}` are of IPv4 (key=1)")]
    Ipv6ForIpv4 { map: String },
}

/// Parses a number, an address or a MAC.
pub fn parse_cell(text: &str) -> Result<Words, LiteralError> {
    if text.contains('/') {
        return Err(LiteralError::UnexpectedPrefix);
    }
    if let Some(mac) = parse_mac(text) {
        return Ok(mac);
    }
    if text.contains(':') {
        let address: Ipv6Addr = text.parse().map_err(|_| LiteralError::NotIpv6OrMac)?;
        return Ok(address_words(address.into()));
    }
    if text.contains('.') {
        let address: Ipv4Addr = text.parse().map_err(|_| LiteralError::NotIpv4)?;
        return Ok(address_words(address.into()));
    }
    let number = parse_number(text)?;
    Ok(Words::new(&[u32::try_from(number).map_err(|_| LiteralError::TooLarge(32))?]))
}

/// Parses what only a field of type `ty` accepts: a 64-bit number, or an IPv4 address in place of
/// its IPv4-mapped IPv6 address. `None` for anything else.
pub fn parse_field(text: &str, ty: Option<FieldType>) -> Option<Result<Vec<u32>, LiteralError>> {
    match ty? {
        FieldType::U64 if !text.contains([':', '.', '/', '-']) => {
            Some(parse_number(text).map(|number| vec![number as u32, (number >> 32) as u32]))
        }
        FieldType::Ip => {
            let address: Ipv4Addr = text.parse().ok()?;
            Some(Ok(address_words(address.to_ipv6_mapped().into()).as_slice().to_vec()))
        }
        _ => None,
    }
}

/// Parses a prefix, or an address as a prefix of full length: the words of the address, then the
/// length. `None` for a plain number.
pub fn parse_prefix(text: &str) -> Option<Result<Words, LiteralError>> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    if length.is_none() && !text.contains([':', '.']) {
        return None;
    }
    let parse = || {
        let address: IpAddr = address.parse().map_err(|_| LiteralError::NotAPrefix)?;
        let words = address_words(address);
        let most = 32 * words.count as u64;
        let length = length.map_or(Some(most), |it| parse_number(it).ok().filter(|it| *it <= most));
        let length = length.ok_or(LiteralError::PrefixLength(most))?;
        Ok(Words::new(&[words.as_slice(), &[length as u32]].concat()))
    };
    Some(parse())
}

/// Parses a number of up to 64 bits, decimal or hexadecimal.
pub fn parse_number(text: &str) -> Result<u64, LiteralError> {
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if text.is_empty() {
        return Err(LiteralError::Empty);
    }
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return Err(LiteralError::NotANumber);
    }
    u64::from_str_radix(digits, base).map_err(|_| LiteralError::TooLarge(64))
}

/// Parses a MAC: its first two bytes, then its last four, as `load_be16` and `load_be32` return
/// them.
fn parse_mac(text: &str) -> Option<Words> {
    let by = if text.contains('-') { '-' } else { ':' };
    let mut bytes = [0; 6];
    let mut parts = text.split(by);
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u32::from_str_radix(part, 16).ok()?;
    }
    let join = |bytes: &[u32]| bytes.iter().fold(0, |word, byte| word << 8 | byte);
    parts.next().is_none().then(|| Words::new(&[join(&bytes[..2]), join(&bytes[2..])]))
}

fn address_words(address: IpAddr) -> Words {
    match address {
        IpAddr::V4(address) => Words::new(&[address.to_bits()]),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            Words::new(&[96, 64, 32, 0].map(|shift| (bits >> shift) as u32))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<u32> {
        parse_cell(text).unwrap_or_else(|wrong| panic!("{text} {wrong}")).as_slice().to_vec()
    }

    #[test]
    fn literals_equal_what_filters_load() {
        for (text, wanted) in [
            ("0", &[0][..]),
            ("4294967295", &[u32::MAX]),
            ("0xFfffFFFF", &[u32::MAX]),
            ("0X1f", &[31]),
            ("007", &[7]),
            ("10.0.0.19", &[0x0a00_0013]),
            ("255.255.255.255", &[u32::MAX]),
            ("2001:db8::7", &[0x2001_0db8, 0, 0, 7]),
            ("::", &[0; 4]),
            ("::ffff:1.2.3.4", &[0, 0, 0xffff, 0x0102_0304]),
            ("02:1a:2b:3c:4d:5e", &[0x021a, 0x2b3c_4d5e]),
            ("FF-00-11-22-33-44", &[0xff00, 0x1122_3344]),
        ] {
            assert_eq!(words(text), wanted, "{text}");
        }
        for (text, wrong) in [
            ("", "is empty"),
            ("-1", "is neither a number"),
            ("+1", "is neither a number"),
            ("1 2", "is neither a number"),
            ("0x", "is neither a number"),
            ("1f", "is neither a number"),
            ("1e3", "is neither a number"),
            ("\u{663}", "is neither a number"),
            ("4294967296", "more than 32 bits"),
            ("18446744073709551616", "more than 64 bits"),
            ("1.5", "is not an IPv4 address"),
            ("10.0.0.256", "is not an IPv4 address"),
            ("010.0.0.1", "is not an IPv4 address"),
            ("1::2::3", "is neither an IPv6 address nor a MAC"),
            ("02:1a:2b:3c:4d", "is neither an IPv6 address nor a MAC"),
            ("02:1a:2b:3c:4d:5e:6f", "is neither an IPv6 address nor a MAC"),
            ("fe80::1%eth0", "is neither an IPv6 address nor a MAC"),
            ("10.0.0.0/8", "is a prefix, which is valid only as the key of an `lpm` map"),
        ] {
            assert!(parse_cell(text).unwrap_err().to_string().contains(wrong), "{text}: {:?}", parse_cell(text));
        }
    }

    #[test]
    fn prefixes_consist_of_an_address_and_a_length() {
        let words = |text| parse_prefix(text).unwrap().map(|words| words.as_slice().to_vec());
        assert_eq!(words("10.0.0.0/8"), Ok(vec![0x0a00_0000, 8]));
        assert_eq!(words("0.0.0.0/0"), Ok(vec![0, 0]));
        assert_eq!(words("10.0.0.1"), Ok(vec![0x0a00_0001, 32]));
        assert_eq!(words("2001:db8::/32"), Ok(vec![0x2001_0db8, 0, 0, 0, 32]));
        assert_eq!(words("::1"), Ok(vec![0, 0, 0, 1, 128]));
        assert_eq!(parse_prefix("7"), None);
        for bad in ["10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/-1", "10.0.0/8", "/8", "1/2/3"] {
            assert!(words(bad).unwrap_err().to_string().starts_with("is not a prefix"), "{bad}");
        }
    }
}
