//! Imports between files. An import is a path in one file that names an item in another file. `mod`, `pub use` (of any
//! visibility) and tests do not count.
//!
//! Re-exports are followed to the file that defines the item. A path to a module alone does not count, but the items that
//! are named through the module do. Method calls have no path and do not count. Paths inside the arguments of macros
//! and in the strings of serde's attributes count.

use std::collections::BTreeMap;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::modules::{ModuleId, Modules, Named};
use super::product::{FileId, Product};
use super::uses::{UsePath, use_leaves};

/// The first place at which a file imports another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// The line, counted from 1.
    pub line: usize,
    /// The path as written in the source.
    pub path: String,
}

/// All imports: maps (importing file, defining file) to the first place of the import.
pub type Imports = BTreeMap<(FileId, FileId), Import>;

/// Finds the imports of all product files.
pub fn imports(product: &Product) -> Imports {
    let mut imports = Imports::new();
    let modules = &product.modules;
    let roots: BTreeMap<FileId, ModuleId> = modules
        .iter()
        .filter(|(_, module)| !module.is_inline(modules))
        .map(|(id, module)| (module.file, id))
        .collect();
    for (file, module) in roots {
        let mut visitor = PathVisitor { modules, file, module, imports: &mut imports };
        visitor.visit_file(&product.files[file].ast);
    }
    imports
}

struct PathVisitor<'a> {
    modules: &'a Modules,
    file: FileId,
    /// The module around the current item.
    module: ModuleId,
    imports: &'a mut Imports,
}

impl PathVisitor<'_> {
    fn add(&mut self, path: &UsePath, span: Span) {
        let found = self.modules.resolve(self.module, path);
        if let Some(Named::Item { file, .. }) = found {
            self.add_file(file, path, span);
        }
    }

    fn add_file(&mut self, file: FileId, path: &UsePath, span: Span) {
        if file != self.file {
            let import = || Import { line: span.start().line, path: path.segments.join("::") };
            self.imports.entry((self.file, file)).or_insert_with(import);
        }
    }

    /// Adds the paths among unparsed tokens: paths with several parts, and type names.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(_) => {
                    let is_member = at > 0
                        && is_punct(&tokens[at - 1], '.')
                        && !(at > 1 && is_punct(&tokens[at - 2], '.'));
                    let (segments, next) = path_at(&tokens, at);
                    let is_type = segments[0].starts_with(char::is_uppercase);
                    if !is_member && (segments.len() > 1 || is_type) {
                        self.add(&UsePath { is_global: false, segments }, tokens[at].span());
                    }
                    at = next - 1;
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for PathVisitor<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, syn::Visibility::Inherited) {
            for leaf in use_leaves(item).iter().filter(|leaf| !leaf.is_glob) {
                self.add(&leaf.path, leaf.span);
            }
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let Some(inner) = self.modules.child(self.module, &module.ident.to_string()) else { return };
        if module.content.is_some() {
            let outer = std::mem::replace(&mut self.module, inner);
            visit::visit_item_mod(self, module);
            self.module = outer;
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let Some(first) = path.segments.first() {
            self.add(&UsePath { is_global: path.leading_colon.is_some(), segments }, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.get_ident() {
            let path = UsePath { is_global: false, segments: vec![name.to_string()] };
            let local = self.modules.resolve(self.module, &path);
            let textual = self.modules.textual_macro(self.module, &name.to_string());
            if let (None, Some(file)) = (local, textual) {
                self.add_file(file, &path, name.span());
            }
        }
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let syn::Meta::List(list) = &attribute.meta else { return };
        self.add_tokens(list.tokens.clone());
        if list.path.is_ident("serde") {
            for token in list.tokens.clone() {
                let TokenTree::Literal(literal) = token else { continue };
                let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) else { continue };
                if let Ok(path) = text.parse::<syn::Path>() {
                    let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
                    self.add_serde(UsePath { is_global: false, segments }, literal.span());
                }
            }
        }
    }
}

impl PathVisitor<'_> {
    /// `with = "module"` names the functions of a module.
    fn add_serde(&mut self, path: UsePath, span: Span) {
        match self.modules.resolve(self.module, &path) {
            Some(Named::Item { file, .. }) => self.add_file(file, &path, span),
            Some(Named::Module(module)) => self.add_file(self.modules.get(module).file, &path, span),
            None => {}
        }
    }
}

/// Returns the parts of the path that begins at `start`, and the index of the next token.
fn path_at(tokens: &[TokenTree], start: usize) -> (Vec<String>, usize) {
    let mut segments = Vec::new();
    let mut at = start;
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        segments.push(name.to_string());
        let is_joined = tokens.get(at + 1).is_some_and(|token| is_punct(token, ':'))
            && tokens.get(at + 2).is_some_and(|token| is_punct(token, ':'))
            && matches!(tokens.get(at + 3), Some(TokenTree::Ident(_)));
        if !is_joined {
            return (segments, at + 1);
        }
        at += 3;
    }
    (segments, at)
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

#[cfg(test)]
mod tests {
    use super::super::checkout::{Checkout, Target};
    use super::super::one_crate;
    use super::*;

    /// `from -> to` of all imports, without the directory and the suffix of the files.
    fn pairs(product: &Product) -> Vec<String> {
        let short = |file: FileId| {
            product.files[file].path.replace("/src", "").replace("one/", "").replace(".rs", "")
        };
        imports(product).keys().map(|(from, to)| format!("{} -> {}", short(*from), short(*to))).collect()
    }

    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let mut found = pairs(&one_crate(files));
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_use_names_the_defining_file_through_reexports() {
        check(
            &[
                ("lib.rs", "mod a; mod b; pub use b::inner::Thing;"),
                ("a.rs", "use crate::Thing; fn f(_: Thing) {}"),
                ("b.rs", "pub mod inner; pub(crate) use inner::Thing as Other;"),
                ("b/inner.rs", "pub struct Thing; use super::super::a::f as _;"),
            ],
            &["a -> b/inner", "b/inner -> a"],
        );
    }

    #[test]
    fn modules_and_reexports_alone_are_no_imports() {
        check(
            &[
                ("lib.rs", "mod a; mod b; pub use a::*;"),
                ("a.rs", "use crate::b; pub struct A;"),
                ("b.rs", "pub struct B;"),
            ],
            &[],
        );
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b; fn f() { b::g(); }"),
                ("b.rs", "pub fn g() {}"),
            ],
            &["a -> b"],
        );
    }

    #[test]
    fn globs_and_inline_modules_are_looked_through() {
        check(
            &[
                ("lib.rs", "mod a; mod b { pub use crate::c::*; } mod c;"),
                ("a.rs", "use super::b::*; fn f() -> C { C::default() }"),
                ("c.rs", "#[derive(Default)] pub struct C; pub enum E { One } "),
            ],
            &["a -> c"],
        );
        check(
            &[
                ("lib.rs", "mod c; use c::E::*; fn f(e: c::E) { matches!(e, One); }"),
                ("c.rs", "pub enum E { One }"),
            ],
            &["lib -> c"],
        );
    }

    #[test]
    fn macros_and_attributes_are_read() {
        check(
            &[
                ("lib.rs", "#[macro_use] mod m; mod a; mod b;"),
                ("m.rs", "macro_rules! make { ($x:ident) => { $crate::b::g($x) } }"),
                ("a.rs", "fn f() { make!(x); println!(\"{}\", crate::b::VALUE); }"),
                ("b.rs", "pub fn g() {} pub const VALUE: u8 = 1;"),
            ],
            &["a -> b", "a -> m", "m -> b"],
        );
        check(
            &[
                ("lib.rs", "mod w; struct S { #[serde(with = \"w\")] x: u8 }"),
                ("w.rs", "pub fn serialize() {}"),
            ],
            &["lib -> w"],
        );
    }

    #[test]
    fn tests_and_local_names_do_not_count() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "fn f(b: u8) -> u8 { b } #[cfg(test)] mod tests { use crate::b::B; }"),
                ("b.rs", "pub struct B; mod own { pub struct C; } use own::C;"),
            ],
            &[],
        );
    }

    #[test]
    fn generated_items_belong_to_the_file_that_includes_them() {
        check(
            &[
                ("lib.rs", "mod wire; mod a;"),
                ("wire.rs", "tonic::include_proto!(\"x\");"),
                ("a.rs", "use crate::wire::{Message, client::Client};"),
            ],
            &["a -> wire"],
        );
    }

    #[test]
    fn paths_lead_into_other_crates_of_the_workspace() {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let checkout = Checkout {
            files: [
                file("two/src/lib.rs", "mod a; pub use a::A;"),
                file("two/src/a.rs", "pub struct A;"),
                file(
                    "one/src/lib.rs",
                    "use two::A; use std::fmt::Debug; fn f() { two::missing(); serde::to(); }",
                ),
            ]
            .into(),
            targets: vec![Target::library("one", "one/src/lib.rs"), Target::library("two", "two/src/lib.rs")],
        };
        assert_eq!(pairs(&Product::parse(checkout).unwrap()), ["lib -> two/a"]);
    }

    #[test]
    fn names_that_reexport_each_other_end() {
        check(
            &[
                ("lib.rs", "mod a; mod b; use a::X;"),
                ("a.rs", "pub use super::b::X;"),
                ("b.rs", "pub use super::a::X;"),
            ],
            &[],
        );
    }
}
