//! What people write in a map's rows: numbers, addresses, prefixes, MACs; and which words they are.
//!
//! Bytes of a packet become words as `load_be32` gives them, so that what is written here is what a filter looks for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis_core::map::fields::FieldType;

/// The words of a cell.
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

    /// As a slice.
    pub fn get(&self) -> &[u32] {
        &self.words[..self.count]
    }
}

/// A number, an address or a MAC. Where it is none, what is wrong with it.
pub fn cell(text: &str) -> Result<Words, String> {
    if text.contains('/') {
        return Err("is a prefix, which only the keys of an `lpm` are".into());
    }
    if let Some(mac) = mac(text) {
        return Ok(mac);
    }
    if text.contains(':') {
        let address: Ipv6Addr = text.parse().map_err(|_| "is no IPv6 address and no MAC")?;
        return Ok(address_words(address.into()));
    }
    if text.contains('.') {
        let address: Ipv4Addr = text.parse().map_err(|_| "is no IPv4 address")?;
        return Ok(address_words(address.into()));
    }
    let number = number(text)?;
    Ok(Words::new(&[u32::try_from(number).map_err(|_| "is more than 32 bits can hold")?]))
}

/// What a cell is more than others where a field of a form begins: a number of 64 bits, or an IPv4 address in place of the
/// IPv6 address that stands for it.
pub fn field(text: &str, ty: Option<FieldType>) -> Option<Result<Vec<u32>, String>> {
    match ty? {
        FieldType::U64 if !text.contains([':', '.', '/', '-']) => {
            Some(number(text).map(|number| vec![number as u32, (number >> 32) as u32]))
        }
        FieldType::Ip => {
            let address: Ipv4Addr = text.parse().ok()?;
            Some(Ok(address_words(address.to_ipv6_mapped().into()).get().to_vec()))
        }
        _ => None,
    }
}

/// A prefix or an address, which is a prefix of full length: the address's words, then the length. None where the text is
/// a number.
pub fn prefix(text: &str) -> Option<Result<Words, String>> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    if length.is_none() && !text.contains([':', '.']) {
        return None;
    }
    let whole = || {
        let address: IpAddr = address.parse().map_err(|_| "is no prefix of an IPv4 or IPv6 address")?;
        let words = address_words(address);
        let most = 32 * words.count as u64;
        let length = length.map_or(Ok(most), |it| number(it).ok().filter(|it| *it <= most).ok_or(most));
        let length = length.map_err(|most| format!("is no prefix: its length is a number from 0 to {most}"))?;
        Ok(Words::new(&[words.get(), &[length as u32]].concat()))
    };
    Some(whole())
}

/// A number of up to 64 bits.
pub fn number(text: &str) -> Result<u64, String> {
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if text.is_empty() {
        return Err("is empty".into());
    }
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return Err("is no number and no address".into());
    }
    u64::from_str_radix(digits, base).map_err(|_| "is more than 64 bits can hold".into())
}

/// A MAC: its first two bytes, then its last four, as `load_be16` and `load_be32` behind it give them.
fn mac(text: &str) -> Option<Words> {
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
        cell(text).unwrap_or_else(|wrong| panic!("{text} {wrong}")).get().to_vec()
    }

    #[test]
    fn what_people_write_is_what_filters_load() {
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
            ("-1", "is no number"),
            ("+1", "is no number"),
            ("1 2", "is no number"),
            ("0x", "is no number"),
            ("1f", "is no number"),
            ("1e3", "is no number"),
            ("\u{663}", "is no number"),
            ("4294967296", "more than 32 bits"),
            ("18446744073709551616", "more than 64 bits"),
            ("1.5", "is no IPv4 address"),
            ("10.0.0.256", "is no IPv4 address"),
            ("010.0.0.1", "is no IPv4 address"),
            ("1::2::3", "is no IPv6 address and no MAC"),
            ("02:1a:2b:3c:4d", "is no IPv6 address and no MAC"),
            ("02:1a:2b:3c:4d:5e:6f", "is no IPv6 address and no MAC"),
            ("fe80::1%eth0", "is no IPv6 address and no MAC"),
            ("10.0.0.0/8", "is a prefix, which only the keys of an `lpm` are"),
        ] {
            assert!(cell(text).unwrap_err().contains(wrong), "{text}: {:?}", cell(text));
        }
    }

    #[test]
    fn prefixes_are_an_address_and_a_length() {
        let words = |text| prefix(text).unwrap().map(|words| words.get().to_vec());
        assert_eq!(words("10.0.0.0/8"), Ok(vec![0x0a00_0000, 8]));
        assert_eq!(words("0.0.0.0/0"), Ok(vec![0, 0]));
        assert_eq!(words("10.0.0.1"), Ok(vec![0x0a00_0001, 32]));
        assert_eq!(words("2001:db8::/32"), Ok(vec![0x2001_0db8, 0, 0, 0, 32]));
        assert_eq!(words("::1"), Ok(vec![0, 0, 0, 1, 128]));
        assert_eq!(prefix("7"), None);
        for bad in ["10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/-1", "10.0.0/8", "/8", "1/2/3"] {
            assert!(words(bad).unwrap_err().starts_with("is no prefix"), "{bad}");
        }
    }
}
