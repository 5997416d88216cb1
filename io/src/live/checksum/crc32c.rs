//! CRC32c, the checksum of SCTP: RFC 9260, appendix A. Slicing-by-8.

/// Castagnoli's polynomial, bit-reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[n][byte]` is the contribution of a byte that `n` bytes follow, so that eight bytes are
/// processed per step.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut behind = 1;
    while behind < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[behind - 1][byte];
            tables[behind][byte] = crc >> 8 ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    tables
}

/// CRC32c of `bytes`, in which the checksum field has to be 0. It is transmitted least significant
/// byte first.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let crc = words.iter().fold(!0, |crc, word| {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        word.to_le_bytes().iter().zip(TABLES.iter().rev()).fold(0, |crc, (&byte, table)| crc ^ table[usize::from(byte)])
    });
    !rest.iter().fold(crc, |crc, &byte| crc >> 8 ^ TABLES[0][(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn matches_published_check_values() {
        // The check value in the catalogue of CRCs, and RFC 3720, appendix B.4 (least significant
        // byte first).
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(checksum(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
        let counting: Vec<u8> = (0..32).collect();
        assert_eq!(checksum(&counting).to_le_bytes(), [0x4e, 0x79, 0xdd, 0x46]);
    }
}
