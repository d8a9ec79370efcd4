//! Time: microseconds since the Unix epoch in an `i64`. Nothing in this crate reads a clock.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An instant, in microseconds since the Unix epoch (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant at this many microseconds.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not after.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This instant moved forward; stops at the end of time rather than wrapping.
    pub fn plus(self, duration: Duration) -> Timestamp {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// The calendar month (UTC): `2026-11`.
    pub fn month(self) -> String {
        let (year, month, _) = civil(self.days());
        format!("{year:04}-{month:02}")
    }

    /// When the next calendar month (UTC) begins.
    pub fn next_month(self) -> Timestamp {
        let (_, _, day) = civil(self.days());
        // No month is longer than 31 days, and no two are shorter than 32.
        let within = self.days() - (day - 1) + 31;
        let (_, _, day) = civil(within);
        Self((within - (day - 1)).saturating_mul(86_400_000_000))
    }

    fn days(self) -> i64 {
        self.0.div_euclid(86_400_000_000)
    }
}

impl std::fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.div_euclid(1_000_000);
        let millis = self.0.rem_euclid(1_000_000) / 1000;
        let (days, in_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (h, m, s) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{millis:03}Z")
    }
}

/// Date of a day count since 1970-01-01, in the proleptic Gregorian calendar, by 400-year eras.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_and_end_where_the_calendar_says() {
        for (at, month, next) in [
            (951_782_400_000_000, "2000-02", "2000-03-01T00:00:00.000Z"),
            (1_704_067_199_999_999, "2023-12", "2024-01-01T00:00:00.000Z"),
            (1_704_067_200_000_000, "2024-01", "2024-02-01T00:00:00.000Z"),
            (1_706_745_599_000_000, "2024-01", "2024-02-01T00:00:00.000Z"),
        ] {
            let at = Timestamp::from_micros(at);
            assert_eq!((at.month(), at.next_month().to_string()), (month.to_owned(), next.to_owned()));
        }
    }

    #[test]
    fn prints_known_instants() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123_456, "2023-11-14T22:13:20.123Z"),
            (-1_000, "1969-12-31T23:59:59.999Z"),
        ];
        for (micros, text) in cases {
            assert_eq!(Timestamp::from_micros(micros).to_string(), text);
        }
    }
}
