//! Dates as HTTP writes them (RFC 9110, section 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`. Seconds are those since 1970.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// The last second of the year 9999: years have four digits.
const LAST: u64 = 253_402_300_799;
/// Days of 400 years, after which the calendar is the same again.
const ERA: u64 = 146_097;
/// Days from the first of March of the year 0 to 1970.
const EPOCH: u64 = 719_468;

/// The date that many seconds after 1970 began; the last there is when it is later.
pub fn format(seconds: u64) -> String {
    let seconds = seconds.min(LAST);
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// What [`format()`] wrote. The obsolete forms of dates, which nobody writes any more, are none.
pub fn parse(text: &str) -> Option<u64> {
    let (weekday, rest) = text.split_once(", ")?;
    let mut words = rest.split(' ');
    let day = figure(words.next()?, 2)?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as u64 + 1;
    let year = figure(words.next()?, 4)?;
    let mut time = words.next()?.split(':').map(|part| figure(part, 2));
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if words.next() != Some("GMT") || words.next().is_some() || time.next().is_some() || year < 1970 {
        return None;
    }
    // A leap second is the one before it again.
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second.min(59);
    let sound = hour < 24 && minute < 60 && second <= 60 && civil(seconds / 86_400) == (year, month, day);
    (sound && DAYS[(seconds / 86_400 % 7) as usize] == weekday).then_some(seconds)
}

fn figure(text: &str, digits: usize) -> Option<u64> {
    (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Year, month and day, that many days after 1970 began. Years begin in March, so that the odd day is their last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Days from 1970 to a date of that year or a later one.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month + 2) / 5 + day.max(1) - 1;
    (era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year).saturating_sub(EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            // The example of the standard.
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (LAST, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(format(seconds), text);
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        assert_eq!(format(u64::MAX), format(LAST));
        // Every day of 500 years comes back.
        for day in 0..182_621 {
            let seconds = day * 86_400 + day % 86_400;
            assert_eq!(parse(&format(seconds)), Some(seconds));
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for bad in [
            "",
            "Sun, 06 Nov 1994 08:49:37",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:61 GMT",
            "Sun, 06 Nov 1994 08:49:37:00 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT x",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Wed, 29 Feb 2100 00:00:00 GMT",
            "Thu, 00 Jan 1970 00:00:00 GMT",
            "Fri, 32 Jan 1970 00:00:00 GMT",
            "Wed, 31 Dec 1969 00:00:00 GMT",
            "Sun, 06 Nov +994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
