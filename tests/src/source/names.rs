//! Types that share a name: structs, enums, unions, traits and aliases that are visible outside their module.
//!
//! Types that a macro or a build script generates have no definition in the sources and do not count.

use std::collections::BTreeMap;

use syn::Visibility;
use syn::visit::{self, Visit};

use super::product::Product;

/// Names that several visible types have, with `path:line` of each.
pub fn homonyms(product: &Product) -> BTreeMap<String, Vec<String>> {
    let mut visitor = TypeVisitor { path: "", found: BTreeMap::new() };
    for file in &product.files {
        visitor.path = &file.path;
        visitor.visit_file(&file.ast);
    }
    visitor.found.retain(|_, places| places.len() > 1);
    visitor.found
}

struct TypeVisitor<'a> {
    path: &'a str,
    found: BTreeMap<String, Vec<String>>,
}

impl<'ast> Visit<'ast> for TypeVisitor<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item;
        let (visibility, name) = match item {
            Item::Struct(item) => (&item.vis, &item.ident),
            Item::Enum(item) => (&item.vis, &item.ident),
            Item::Union(item) => (&item.vis, &item.ident),
            Item::Trait(item) => (&item.vis, &item.ident),
            Item::Type(item) => (&item.vis, &item.ident),
            Item::Mod(_) => return visit::visit_item(self, item),
            // Items inside a function are not visible outside.
            _ => return,
        };
        if !matches!(visibility, Visibility::Inherited) {
            let place = format!("{}:{}", self.path, name.span().start().line);
            self.found.entry(name.to_string()).or_default().push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::one_crate;
    use super::*;

    #[test]
    fn visible_types_of_one_name_are_found() {
        let product = one_crate(&[
            ("lib.rs", "mod a; pub struct Place; struct Own; pub enum Once {}"),
            (
                "a.rs",
                "pub(super) enum Place {}\nmod inner { pub trait Own {} }\n#[cfg(test)] pub struct Once;",
            ),
        ]);
        let found = homonyms(&product);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["Place"]);
        assert_eq!(found["Place"], ["one/src/lib.rs:1", "one/src/a.rs:1"]);
    }
}
