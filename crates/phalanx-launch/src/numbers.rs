//! Whole numbers as short text: `0-3,7`.

/// `0-3,7`: numbers in ascending order, neighbours together.
pub fn runs(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let show = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(show).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbours_stand_together() {
        assert_eq!(super::runs([0, 1, 2, 3, 7]), "0-3,7");
        assert_eq!(super::runs([5]), "5");
        assert_eq!(super::runs([]), "");
    }
}
