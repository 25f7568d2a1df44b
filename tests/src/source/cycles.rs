//! Import cycles: groups of files that all import each other, directly or through other files of the group.

use std::collections::BTreeMap;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use super::imports::{Import, Imports};
use super::product::{FileId, Product};

/// Files that import each other in a circle: a strongly connected component of more than one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// The files, sorted by path.
    pub files: Vec<String>,
    /// The imports between them.
    pub imports: Vec<CycleImport>,
}

/// An import inside a cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CycleImport {
    /// The importing file.
    pub from: String,
    /// The defining file.
    pub to: String,
    /// The first import.
    pub import: Import,
}

impl Cycle {
    /// The directory that holds all files, each directly or as the directory's own module file (`a.rs` beside `a/`).
    pub fn folder(&self) -> Option<&str> {
        let parent = |path: &'_ str| path.rsplit_once('/').map_or(0, |(folder, _)| folder.len());
        let candidates = self.files.iter().map(|path| &path[..parent(path)]);
        candidates.max_by_key(|folder| folder.len()).filter(|folder| {
            let own = format!("{folder}.rs");
            self.files.iter().all(|path| &path[..parent(path)] == *folder || *path == own)
        })
    }
}

/// Returns the cycles among files, the largest first.
pub fn file_cycles(product: &Product, imports: &Imports) -> Vec<Cycle> {
    let path = |file: FileId| product.files[file].path.clone();
    let mut cycles = Vec::new();
    for group in groups(imports.keys().copied()) {
        let mut files: Vec<String> = group.iter().map(|file| path(*file)).collect();
        files.sort();
        let inside = imports.iter().filter(|((from, to), _)| group.contains(from) && group.contains(to));
        let mut imports: Vec<CycleImport> = inside
            .map(|((from, to), import)| CycleImport {
                from: path(*from),
                to: path(*to),
                import: import.clone(),
            })
            .collect();
        imports.sort_by(|left, right| (&left.from, &left.to).cmp(&(&right.from, &right.to)));
        cycles.push(Cycle { files, imports });
    }
    cycles.sort_by(|left, right| right.files.len().cmp(&left.files.len()).then(left.files.cmp(&right.files)));
    cycles
}

/// Returns the cycles among packages. Each cycle is sorted by name.
pub fn package_cycles(product: &Product, imports: &Imports) -> Vec<Vec<String>> {
    let mut numbers = BTreeMap::new();
    for file in &product.files {
        let next = numbers.len();
        numbers.entry(file.package.as_str()).or_insert(next);
    }
    let number = |file: FileId| numbers[product.files[file].package.as_str()];
    let found = groups(imports.keys().map(|(from, to)| (number(*from), number(*to))));
    let names = |group: &Vec<usize>| {
        numbers.iter().filter(|(_, at)| group.contains(at)).map(|(name, _)| (*name).to_owned()).collect()
    };
    found.iter().map(names).collect()
}

fn groups(edges: impl Iterator<Item = (usize, usize)>) -> Vec<Vec<usize>> {
    let graph: DiGraphMap<usize, ()> = DiGraphMap::from_edges(edges);
    tarjan_scc(&graph).into_iter().filter(|group| group.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::super::imports::imports;
    use super::super::one_crate;
    use super::*;

    #[test]
    fn a_cycle_has_its_files_and_its_imports() {
        let product = one_crate(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;\npub struct A;"),
            ("b.rs", "pub struct B;\nfn f() -> crate::a::A { crate::a::A }\nuse crate::c::C;"),
            ("c.rs", "pub struct C;"),
        ]);
        let cycles = file_cycles(&product, &imports(&product));
        let [cycle] = &cycles[..] else { panic!("one cycle: {cycles:?}") };
        assert_eq!(cycle.files, ["one/src/a.rs", "one/src/b.rs"]);
        let lines: Vec<_> =
            cycle.imports.iter().map(|import| (import.import.line, &*import.import.path)).collect();
        assert_eq!(lines, [(1, "crate::b::B"), (2, "crate::a::A")]);
        assert_eq!(cycle.folder(), Some("one/src"));
    }

    #[test]
    fn a_folder_and_its_module_file_belong_together() {
        let cycle = |files: &[&str]| Cycle {
            files: files.iter().map(|file| (*file).into()).collect(),
            imports: vec![],
        };
        assert_eq!(cycle(&["x/a.rs", "x/a/b.rs"]).folder(), Some("x/a"));
        assert_eq!(cycle(&["x/a.rs", "x/a/b.rs", "x/c.rs"]).folder(), None);
        assert_eq!(cycle(&["x/a/b.rs", "x/c/d.rs"]).folder(), None);
    }
}
