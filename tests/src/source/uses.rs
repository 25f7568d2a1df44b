//! The leaves of `use` items.

use syn::visit::Visit;

/// A path of a `use` item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsePath {
    /// Whether it begins with `::`.
    pub is_global: bool,
    /// Its parts, without `*`.
    pub segments: Vec<String>,
}

/// A leaf of a `use` tree.
pub struct UseLeaf {
    /// The whole path.
    pub path: UsePath,
    /// The name that the leaf binds: `None` for `*` and `as _`.
    pub name: Option<String>,
    /// Whether it is `*`.
    pub is_glob: bool,
    /// The location in the source.
    pub span: proc_macro2::Span,
}

/// The leaves of a `use` item.
pub fn use_leaves(item: &syn::ItemUse) -> Vec<UseLeaf> {
    let mut leaves = Vec::new();
    let start = UsePath { is_global: item.leading_colon.is_some(), segments: Vec::new() };
    collect_leaves(&item.tree, start, &mut leaves);
    leaves
}

fn collect_leaves(tree: &syn::UseTree, mut path: UsePath, leaves: &mut Vec<UseLeaf>) {
    let mut leaf = |path: UsePath, name: Option<String>, is_glob, span| {
        leaves.push(UseLeaf { path, name, is_glob, span });
    };
    match tree {
        syn::UseTree::Path(part) => {
            path.segments.push(part.ident.to_string());
            collect_leaves(&part.tree, path, leaves);
        }
        syn::UseTree::Name(part) => {
            if part.ident != "self" {
                path.segments.push(part.ident.to_string());
            }
            let name = path.segments.last().cloned();
            leaf(path, name, false, part.ident.span());
        }
        syn::UseTree::Rename(part) => {
            if part.ident != "self" {
                path.segments.push(part.ident.to_string());
            }
            let name = (part.rename != "_").then(|| part.rename.to_string());
            leaf(path, name, false, part.ident.span());
        }
        syn::UseTree::Glob(part) => leaf(path, None, true, part.star_token.spans[0]),
        syn::UseTree::Group(group) => {
            for part in &group.items {
                collect_leaves(part, path.clone(), leaves);
            }
        }
    }
}

/// Collects all `use` items of an item, including those inside functions.
pub(super) struct UseCollector {
    pub(super) leaves: Vec<UseLeaf>,
}

impl<'ast> Visit<'ast> for UseCollector {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.leaves.extend(use_leaves(item));
    }
}
