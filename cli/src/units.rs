//! Sizes and times, as people write and read them.

use std::time::Duration;

/// `64MiB`, `1GB`, `4096`: decimal and binary units, in bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000u64,
        _ => return Err(format!("`{text}` is no size; write 512MiB, 2GiB, 1GB or a number of bytes")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no size; it begins with a number"))?;
    let bytes = number * unit as f64;
    if bytes < 1.0 || bytes > (1u64 << 60) as f64 {
        return Err(format!("`{text}` is out of range"));
    }
    Ok(bytes as u64)
}

/// `30s`, `150ms`, `2m`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{text}` is no time; write 30s, 150ms, 2m or 1h")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no time; it begins with a number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("`{text}` is out of range"))
}

/// Bytes for people: three digits and a binary unit.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.2} TiB")
}

/// A time for people who wait, in seconds: `45 s`, `12 min`, `16 h 5 min`.
pub fn span(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0..2) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// A count with its thousands set apart.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(parse_size("7"), Ok(7));
        for bad in ["", "MiB", "1.2.3", "5 parsecs", "0", "9999999999TiB", "-1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("150ms"), Ok(Duration::from_millis(150)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for bad in ["", "s", "1y", "-1s", "1e300h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn for_people() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(count(1_281_167), "1,281,167");
        assert_eq!(count(12), "12");
        assert_eq!([45, 119, 120, 3599, 57_900].map(span), ["45 s", "119 s", "2 min", "59 min", "16 h 5 min"]);
    }
}
