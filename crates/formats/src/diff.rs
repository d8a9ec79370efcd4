//! What changed between two texts, line by line, for people.
//!
//! The shortest way by longest common subsequence, after equal beginnings and ends are set aside. Texts whose middle parts are
//! too large for that are shown as replaced: true, only longer.

/// A line of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// In both.
    Same(&'a str),
    /// Only in the old one.
    Removed(&'a str),
    /// Only in the new one.
    Added(&'a str),
}

/// Cells of the table, at most.
const MOST: usize = 16_000_000;

/// All lines of both, in order.
pub fn lines<'a>(old: &'a str, new: &'a str) -> Vec<Line<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let part = |all: &[&'a str]| all.get(head..all.len() - tail).unwrap_or_default().to_vec();
    let mut all: Vec<Line<'a>> = old.iter().take(head).map(|line| Line::Same(line)).collect();
    all.extend(middle(&part(&old), &part(&new)));
    all.extend(old.iter().skip(old.len() - tail).map(|line| Line::Same(line)));
    all
}

fn middle<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let width = new.len() + 1;
    if (old.len() + 1).saturating_mul(width) > MOST {
        let removed = old.iter().map(|line| Line::Removed(line));
        return removed.chain(new.iter().map(|line| Line::Added(line))).collect();
    }
    // common[i * width + j]: length of the longest common subsequence of old[i..] and new[j..].
    let mut common = vec![0u32; (old.len() + 1) * width];
    let at = |common: &[u32], i: usize, j: usize| common.get(i * width + j).copied().unwrap_or(0);
    for (i, a) in old.iter().enumerate().rev() {
        for (j, b) in new.iter().enumerate().rev() {
            let value = if a == b {
                at(&common, i + 1, j + 1) + 1
            } else {
                at(&common, i + 1, j).max(at(&common, i, j + 1))
            };
            if let Some(cell) = common.get_mut(i * width + j) {
                *cell = value;
            }
        }
    }
    let (mut i, mut j, mut all) = (0, 0, Vec::new());
    while let (Some(a), Some(b)) = (old.get(i), new.get(j)) {
        if a == b {
            all.push(Line::Same(a));
            (i, j) = (i + 1, j + 1);
        } else if at(&common, i + 1, j) >= at(&common, i, j + 1) {
            all.push(Line::Removed(a));
            i += 1;
        } else {
            all.push(Line::Added(b));
            j += 1;
        }
    }
    all.extend(old.iter().skip(i).map(|line| Line::Removed(line)));
    all.extend(new.iter().skip(j).map(|line| Line::Added(line)));
    all
}

/// The same with only so many equal lines around what differs; `None` stands where lines were left out.
pub fn hunks<'a>(lines: &[Line<'a>], around: usize) -> Vec<Option<Line<'a>>> {
    let mut keep = vec![false; lines.len()];
    for (place, line) in lines.iter().enumerate() {
        if !matches!(line, Line::Same(_)) {
            let from = place.saturating_sub(around);
            for flag in keep.iter_mut().skip(from).take(place + around + 1 - from) {
                *flag = true;
            }
        }
    }
    let mut shown = Vec::new();
    for (line, keep) in lines.iter().zip(keep) {
        if keep {
            shown.push(Some(*line));
        } else if !matches!(shown.last(), Some(None)) {
            shown.push(None);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_changed_line_is_removed_and_added_and_the_rest_stays() {
        let shown = lines("a\nb\nc\nd", "a\nx\nc\nd\ne");
        assert_eq!(
            shown,
            [
                Line::Same("a"),
                Line::Removed("b"),
                Line::Added("x"),
                Line::Same("c"),
                Line::Same("d"),
                Line::Added("e")
            ]
        );
        let cut = hunks(&shown, 0);
        assert_eq!(
            cut,
            [None, Some(Line::Removed("b")), Some(Line::Added("x")), None, Some(Line::Added("e"))]
        );
        assert_eq!(hunks(&lines("a", "a"), 3), [None]);
    }

    proptest! {
        #[test]
        fn both_texts_can_be_read_back(old in "([ab]\n){0,12}", new in "([ab]\n){0,12}") {
            let shown = lines(&old, &new);
            let side = |wanted: fn(&Line<'_>) -> Option<String>| shown.iter().filter_map(wanted).collect::<String>();
            let before = side(|line| match line {
                Line::Same(text) | Line::Removed(text) => Some(format!("{text}\n")),
                Line::Added(_) => None,
            });
            let after = side(|line| match line {
                Line::Same(text) | Line::Added(text) => Some(format!("{text}\n")),
                Line::Removed(_) => None,
            });
            prop_assert_eq!((before, after), (old, new));
        }
    }
}
