//! The product's files, parsed, without their tests, and the module tree that they form.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};

use super::checkout::{Checkout, Target};
use super::modules::Modules;

/// Index into [`Product::files`].
pub type FileId = usize;

/// All files that a library, binary or build script of the product reaches.
pub struct Product {
    /// The checkout that was parsed.
    pub checkout: Checkout,
    /// The files, each once.
    pub files: Vec<ProductFile>,
    /// Their modules.
    pub modules: Modules,
}

/// One file of the product.
pub struct ProductFile {
    /// Relative to the root.
    pub path: String,
    /// The package that it belongs to.
    pub package: String,
    /// The items that are compiled outside tests.
    pub ast: syn::File,
    /// The lines of the items that only tests compile.
    pub test_lines: Vec<RangeInclusive<usize>>,
}

impl ProductFile {
    /// Whether a line, counted from 1, belongs to a test.
    pub fn is_test_line(&self, line: usize) -> bool {
        self.test_lines.iter().any(|range| range.contains(&line))
    }
}

impl Product {
    /// Parses the product's crates, module by module.
    pub fn parse(checkout: Checkout) -> Result<Self, String> {
        let targets: Vec<Target> =
            checkout.targets.iter().filter(|target| target.is_product()).cloned().collect();
        let mut product = Self { checkout, files: Vec::new(), modules: Modules::default() };
        let mut known = BTreeMap::new();
        for target in &targets {
            product.add_target(target, &mut known)?;
        }
        Ok(product)
    }

    /// The text of a file.
    pub fn text(&self, file: FileId) -> &str {
        self.checkout.files.get(&self.files[file].path).map_or("", String::as_str)
    }

    fn add_target(&mut self, target: &Target, known: &mut BTreeMap<String, FileId>) -> Result<(), String> {
        let Some(root_file) = self.add_file(&target.file, &target.package, known)? else {
            return Err(format!("{}: the first file of {} is missing", target.file, target.package));
        };
        let root = self.modules.add_root(target, root_file);
        let mut open = vec![(root, root_file)];
        while let Some((module, file)) = open.pop() {
            let ast = self.files[file].ast.clone();
            let is_root = module == root;
            for declared in self.modules.fill(module, &ast.items, &self.files[file].path, is_root) {
                let exists = |path: &&String| self.checkout.files.contains_key(*path);
                let Some(path) = declared.candidates.iter().find(exists).cloned() else { continue };
                if let Some(child_file) = self.add_file(&path, &target.package, known)? {
                    let child = self.modules.add_child(declared.parent, &declared.name, child_file);
                    open.push((child, child_file));
                }
            }
        }
        Ok(())
    }

    fn add_file(
        &mut self,
        path: &str,
        package: &str,
        known: &mut BTreeMap<String, FileId>,
    ) -> Result<Option<FileId>, String> {
        if let Some(file) = known.get(path) {
            return Ok(Some(*file));
        }
        let Some(text) = self.checkout.files.get(path) else { return Ok(None) };
        let mut ast = syn::parse_file(text).map_err(|error| {
            let at = error.span().start();
            format!("{path}:{}:{}: {error}", at.line, at.column + 1)
        })?;
        let test_lines = remove_tests(&mut ast);
        known.insert(path.to_owned(), self.files.len());
        self.files.push(ProductFile { path: path.into(), package: package.into(), ast, test_lines });
        Ok(Some(self.files.len() - 1))
    }
}

/// Removes the items that only tests compile, and returns their lines.
fn remove_tests(file: &mut syn::File) -> Vec<RangeInclusive<usize>> {
    let mut remover = TestRemover { lines: Vec::new() };
    remover.visit_file_mut(file);
    remover.lines
}

struct TestRemover {
    lines: Vec<RangeInclusive<usize>>,
}

impl TestRemover {
    /// Records the lines of a part that only tests compile. Returns whether to keep the part.
    fn keep(&mut self, attributes: &[syn::Attribute], part: &impl Spanned) -> bool {
        if !is_for_tests(attributes) {
            return true;
        }
        let span = part.span();
        self.lines.push(span.start().line..=span.end().line);
        false
    }
}

impl VisitMut for TestRemover {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| self.keep(item_attributes(item), item));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| self.keep(item_attributes(item), item));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            syn::ImplItem::Fn(function) => self.keep(&function.attrs, item),
            syn::ImplItem::Const(constant) => self.keep(&constant.attrs, item),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_fields_named_mut(&mut self, fields: &mut syn::FieldsNamed) {
        let all = std::mem::take(&mut fields.named);
        fields.named = all.into_iter().filter(|field| self.keep(&field.attrs, field)).collect();
        visit_mut::visit_fields_named_mut(self, fields);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(|statement| match statement {
            syn::Stmt::Item(item) => self.keep(item_attributes(item), item),
            syn::Stmt::Local(local) => self.keep(&local.attrs, local),
            _ => true,
        });
        visit_mut::visit_block_mut(self, block);
    }
}

/// Whether the attributes restrict the part to tests: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, ...))]`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = attribute.path().segments.last().is_some_and(|segment| segment.ident == "test");
        let condition = attribute.path().is_ident("cfg").then(|| attribute.parse_args::<syn::Meta>().ok());
        is_test || condition.flatten().is_some_and(|condition| requires_test(&condition))
    })
}

fn requires_test(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => {
            type Conditions = syn::punctuated::Punctuated<syn::Meta, syn::Token![,]>;
            let parts = list.parse_args_with(Conditions::parse_terminated);
            parts.is_ok_and(|parts| parts.iter().any(requires_test))
        }
        _ => false,
    }
}

/// The attributes of an item.
pub fn item_attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item;
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::super::one_crate;

    #[test]
    fn tests_are_removed_and_their_lines_noted() {
        let text = "//! Doc.\nfn kept() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {}\n}\n#[cfg(any(test, feature = \"x\"))]\nfn also_kept() {}\n";
        let product = one_crate(&[("lib.rs", text)]);
        let file = &product.files[0];
        assert_eq!(file.test_lines, [3..=7]);
        assert!(file.is_test_line(5) && !file.is_test_line(9));
        assert_eq!(file.ast.items.len(), 2);
    }

    #[test]
    fn files_of_test_modules_are_not_product() {
        let product = one_crate(&[
            ("lib.rs", "mod a;\n#[cfg(all(test, unix))]\nmod tests;\n"),
            ("a.rs", "mod b;"),
            ("a/b.rs", ""),
            ("tests.rs", ""),
        ]);
        let paths: Vec<&str> = product.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["one/src/lib.rs", "one/src/a.rs", "one/src/a/b.rs"]);
    }
}
