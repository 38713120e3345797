//! Dates for `strftime_now`.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `now` (UTC) after the directives of C's `strftime`; nothing if `format` has one that is unknown.
pub(super) fn strftime(now: SystemTime, format: &str) -> Option<String> {
    let seconds = match now.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).ok()?,
        Err(before) => -i64::try_from(before.duration().as_secs()).ok()?,
    };
    let (days, second) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    let (year, month, day) = date(days)?;
    let weekday = (days + 4).rem_euclid(7) as usize;
    let year_start = days_before_year(year);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let month_name = MONTHS[month - 1];

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next()?;
        // glibc: `-` leaves the padding out.
        let (padded, directive) = match directive {
            '-' => (false, chars.next()?),
            directive => (true, directive),
        };
        let number = |n: i64, width: usize| match padded {
            true => format!("{n:0width$}"),
            false => n.to_string(),
        };
        out += &match directive {
            'a' => DAYS[weekday][..3].to_owned(),
            'A' => DAYS[weekday].to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'B' => month_name.to_owned(),
            'd' => number(day, 2),
            'e' => format!("{day:2}"),
            'm' => number(month as i64, 2),
            'Y' => year.to_string(),
            'y' => number(year.rem_euclid(100), 2),
            'j' => number(days - year_start + 1, 3),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'u' => (if weekday == 0 { 7 } else { weekday }).to_string(),
            'w' => weekday.to_string(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'D' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            's' => seconds.to_string(),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        };
    }
    Some(out)
}

/// Days from 1970-01-01 to the first of January of `year`, Gregorian.
fn days_before_year(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

/// Year, month 1..=12 and day 1..=31 of a day counted from 1970-01-01; nothing for years of more
/// than six digits.
fn date(days: i64) -> Option<(i64, usize, i64)> {
    if days.abs() > 365_000_000 {
        return None;
    }
    // Never too late, since no year is shorter or longer.
    let mut year = 1970 + days.div_euclid(if days < 0 { 365 } else { 366 });
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let leap = days_before_year(year + 1) - days_before_year(year) == 366;
    let lengths = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut day = days - days_before_year(year);
    for (month, length) in lengths.into_iter().enumerate() {
        if day < length {
            return Some((year, month + 1, day + 1));
        }
        day -= length;
    }
    None
}
