//! Number formatting for readers: three significant digits, and units that do not wrap.

/// Formats three significant digits, thousands grouped: `0.0123`, `1.23`, `123`, `12,300`. NaN and
/// infinity are a dash.
pub fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let exponent = rounded_exponent(value);
    if !(-4..15).contains(&exponent) {
        return format!("{value:.2e}");
    }
    if exponent >= 2 {
        let unit = 10f64.powi(exponent - 2);
        return grouped(((value / unit).round() * unit).round() as i64);
    }
    format!("{value:.*}", (2 - exponent) as usize)
}

/// Returns the decimal exponent of the value rounded to three digits.
fn rounded_exponent(value: f64) -> i32 {
    let exponent = value.abs().log10().floor() as i32;
    let rounded = (value.abs() / 10f64.powi(exponent - 2)).round();
    if rounded >= 1000.0 { exponent + 1 } else { exponent }
}

/// Formats an integer with grouped thousands: `1,048,576`.
pub fn grouped(value: i64) -> String {
    let sign = if value < 0 { "−" } else { "" };
    sign.to_owned() + &separated(value.unsigned_abs(), ',')
}

/// Formats an integer with a separator between groups of three digits.
pub fn separated(value: u64, separator: char) -> String {
    let plain = value.to_string();
    let mut text = String::with_capacity(plain.len() + plain.len() / 3);
    for (place, digit) in plain.chars().enumerate() {
        if place > 0 && (plain.len() - place).is_multiple_of(3) {
            text.push(separator);
        }
        text.push(digit);
    }
    text
}

/// Formats a count for an axis or a sentence: `64`, `1 K`, `16.4 K`, `10 M`.
pub fn short(value: f64) -> String {
    let (unit, name) = match value.abs() {
        v if v >= 999.5e6 => (1e9, "\u{a0}G"),
        v if v >= 999.5e3 => (1e6, "\u{a0}M"),
        v if v >= 999.5 => (1e3, "\u{a0}K"),
        _ => (1.0, ""),
    };
    trimmed(value / unit) + name
}

/// Formats three significant digits without trailing zeros: `1`, `16.4`, `0.5`.
pub fn trimmed(value: f64) -> String {
    let text = digits(value);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

/// Formats a time in the unit that suits it: `850 ns`, `1.23 µs`, `4.56 ms`, `7.89 s`.
pub fn time(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "–".into();
    }
    if seconds == 0.0 {
        return "0\u{a0}s".into();
    }
    let (unit, name) = time_unit(seconds);
    format!("{}\u{a0}{name}", digits(seconds / unit))
}

/// Formats a time for an axis: `1 µs`, `10 ms`.
pub fn tick_time(seconds: f64) -> String {
    let (unit, name) = time_unit(seconds);
    format!("{}\u{a0}{name}", trimmed(seconds / unit))
}

/// Returns the unit that suits a time, in seconds, and its name.
fn time_unit(seconds: f64) -> (f64, &'static str) {
    match seconds.abs() {
        v if v < 0.9995e-6 => (1e-9, "ns"),
        v if v < 0.9995e-3 => (1e-6, "µs"),
        v if v < 0.9995 => (1e-3, "ms"),
        _ => (1.0, "s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        let cases = [
            (0.0, "0"),
            (0.001_234, "0.00123"),
            (0.099_96, "0.100"),
            (0.5, "0.500"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (123.4, "123"),
            (1_234.5, "1,230"),
            (999_999.0, "1,000,000"),
            (-12.34, "-12.3"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(digits(value), text, "{value}");
        }
    }

    fn plain(format: fn(f64) -> String) -> impl Fn(f64) -> String {
        move |value| format(value).replace('\u{a0}', " ")
    }

    #[test]
    fn units_follow_size() {
        assert_eq!(
            [64.0, 1_000.0, 1_024.0, 16_384.0, 999_999.0, 1e7, 2.5e9].map(plain(short)),
            ["64", "1 K", "1.02 K", "16.4 K", "1 M", "10 M", "2.5 G"]
        );
        assert_eq!(
            [0.0, 3.2e-9, 999.9e-9, 1.5e-6, 2e-3, 1.0].map(plain(time)),
            ["0 s", "3.20 ns", "1.00 µs", "1.50 µs", "2.00 ms", "1.00 s"]
        );
        assert_eq!([1e-6, 1e-4, 10.0].map(plain(tick_time)), ["1 µs", "100 µs", "10 s"]);
        assert_eq!(grouped(1_048_576), "1,048,576");
        assert_eq!(grouped(-1_000), "−1,000");
    }
}
