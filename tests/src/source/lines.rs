//! Lines of Rust: how many belong to the product, how many to tests, and how long files and functions are.

use std::collections::BTreeMap;

use super::product::Product;

/// Lines of a package.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LineCount {
    /// Lines of the product.
    pub product: usize,
    /// Lines of tests.
    pub test: usize,
}

impl LineCount {
    /// Returns the percentage of test lines.
    pub fn test_percent(self) -> f64 {
        100.0 * self.test as f64 / ((self.product + self.test).max(1)) as f64
    }
}

/// Median, 90th percentile, 99th percentile and maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// Half of the values are at most this.
    pub median: usize,
    /// Nine of ten values are at most this.
    pub p90: usize,
    /// 99 of 100 values are at most this.
    pub p99: usize,
    /// The largest value.
    pub max: usize,
}

impl Spread {
    /// Computes the spread of the values. All results are 0 if there are no values.
    pub fn of(mut values: Vec<usize>) -> Self {
        values.sort_unstable();
        // Nearest rank: the smallest value that at least this share of the values does not exceed.
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or(0)
        };
        Self { median: at(50), p90: at(90), p99: at(99), max: at(100) }
    }
}

/// Lines by package; Rust files outside every package count as the package `(others)`.
pub fn lines_by_package(product: &Product) -> BTreeMap<String, LineCount> {
    let mut test_lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, file) in product.files.iter().enumerate() {
        let all = product.text(id).lines().count();
        test_lines.insert(&file.path, (1..=all).filter(|line| file.is_test_line(*line)).count());
    }
    let mut counts: BTreeMap<String, LineCount> = BTreeMap::new();
    for (path, text) in product.checkout.files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let package = product.checkout.package_of(path).unwrap_or("(others)");
        let all = text.lines().count();
        let test = test_lines.get(path.as_str()).copied().unwrap_or(all);
        let count = counts.entry(package.to_owned()).or_default();
        count.test += test;
        count.product += all - test;
    }
    counts
}

/// Returns the lengths of product files, without their tests.
pub fn file_lengths(product: &Product) -> Vec<(usize, String)> {
    let length = |id: usize| {
        let file = &product.files[id];
        let all = product.text(id).lines().count();
        ((1..=all).filter(|line| !file.is_test_line(*line)).count(), file.path.clone())
    };
    (0..product.files.len()).map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::super::checkout::{Checkout, Target};
    use super::*;

    #[test]
    fn lines_are_the_products_or_tests() {
        let files = [
            ("one/src/lib.rs", "mod a;\n#[cfg(test)]\nmod tests {\n}\n"),
            ("one/src/a.rs", "\n// Comment.\n"),
            ("one/tests/whole.rs", "fn x() {}\n"),
            ("fuzz/x.rs", "\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let targets = vec![Target::library("one", "one/src/lib.rs")];
        let counts = lines_by_package(&Product::parse(Checkout { files, targets }).unwrap());
        assert_eq!(counts["one"], LineCount { product: 3, test: 4 });
        assert_eq!(counts["(others)"], LineCount { product: 0, test: 1 });
    }

    #[test]
    fn a_spread_takes_the_nearest_rank() {
        assert_eq!(Spread::of((1..=10).collect()), Spread { median: 5, p90: 9, p99: 10, max: 10 });
        assert_eq!(Spread::of(vec![]), Spread { median: 0, p90: 0, p99: 0, max: 0 });
    }
}
