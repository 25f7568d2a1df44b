//! Measures the length of the product's functions: the lines of the signature and the body, without attributes and doc
//! comments.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::product::Product;

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionLength {
    /// From the first line of the signature to the closing brace.
    pub lines: usize,
    /// `path:line`.
    pub place: String,
    /// Its name.
    pub name: String,
}

/// Returns all functions of the product. The lines of a nested function also count for the outer function.
pub fn function_lengths(product: &Product) -> Vec<FunctionLength> {
    let mut visitor = FunctionVisitor { path: "", found: Vec::new() };
    for file in &product.files {
        visitor.path = &file.path;
        visitor.visit_file(&file.ast);
    }
    visitor.found
}

struct FunctionVisitor<'a> {
    path: &'a str,
    found: Vec<FunctionLength>,
}

impl FunctionVisitor<'_> {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.span().start().line;
        let last = body.span().end().line;
        let place = format!("{}:{first}", self.path);
        self.found.push(FunctionLength { lines: last + 1 - first, place, name: signature.ident.to_string() });
    }
}

impl<'ast> Visit<'ast> for FunctionVisitor<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::super::one_crate;
    use super::*;

    #[test]
    fn functions_count_from_signature_to_brace() {
        let text = "/// Doc.\n#[inline]\npub fn a(\n    x: u8,\n) -> u8 {\n    x\n}\ntrait T {\n    fn b();\n    fn c() {}\n}\n#[test]\nfn d() {}\n";
        let found = function_lengths(&one_crate(&[("lib.rs", text)]));
        let found: Vec<_> = found.iter().map(|found| (&*found.name, found.lines, &*found.place)).collect();
        assert_eq!(found, [("a", 5, "one/src/lib.rs:3"), ("c", 1, "one/src/lib.rs:10")]);
    }
}
