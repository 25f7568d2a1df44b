//! Samples the language of the code and the documents, for readers who do not see the code. Each item names its kind and its
//! module, so that it can be judged alone.

use std::fmt::Write;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::product::Product;
use super::prose::{Comment, prose};
use super::random::choose;

/// Returns the sample as markdown: numbered identifiers, messages, comments and paragraphs. Equal seeds and files produce equal
/// samples.
pub fn sample(product: &Product, seed: u64) -> Result<String, String> {
    let mut identifiers = Vec::new();
    let mut messages = Vec::new();
    let mut comments = Vec::new();
    for id in 0..product.files.len() {
        add_identifiers(product, id, &mut identifiers, &mut messages);
        add_prose(product, id, &mut messages, &mut comments)?;
    }
    let sections = [
        ("Identifiers", 40, identifiers),
        ("Messages", 20, messages),
        ("Comments", 20, comments),
        ("Paragraphs of the documents", 10, paragraphs(product)),
    ];
    let mut text = format!("# Language sample, seed {seed}\n");
    let mut number = 0;
    for (stream, (title, count, items)) in sections.into_iter().enumerate() {
        let _ = write!(text, "\n## {title} ({count} of {})\n", items.len());
        for index in choose(seed, stream as u64, count, items.len()) {
            number += 1;
            let _ = write!(text, "\n{number}. {}\n", items[index]);
        }
    }
    Ok(text)
}

/// Files whose strings are generated data, not messages.
const DATA_FILES: [&str; 1] = ["node/tools/src/make_data/text.rs"];

fn add_identifiers(product: &Product, id: usize, identifiers: &mut Vec<String>, messages: &mut Vec<String>) {
    let file = &product.files[id];
    let scope = vec![module_path(&file.package, &file.path)];
    let text = product.text(id);
    let mut visitor = IdentifierVisitor { path: &file.path, text, scope, identifiers, messages };
    visitor.visit_file(&file.ast);
}

/// Returns the path of a file's module, such as `feedline_client::feed::credit`.
fn module_path(package: &str, path: &str) -> String {
    let inside = path.rsplit_once("src/").map_or(path, |(_, inside)| inside);
    let stem = inside.trim_end_matches(".rs");
    let segments = stem.split('/').filter(|segment| !matches!(*segment, "lib" | "main"));
    [package.replace('-', "_")].into_iter().chain(segments.map(str::to_owned)).collect::<Vec<_>>().join("::")
}

struct IdentifierVisitor<'a> {
    path: &'a str,
    text: &'a str,
    /// The module and the types around the current item.
    scope: Vec<String>,
    identifiers: &'a mut Vec<String>,
    messages: &'a mut Vec<String>,
}

impl IdentifierVisitor<'_> {
    fn add(&mut self, kind: &str, name: &syn::Ident, signature: std::ops::Range<usize>) {
        let line = name.span().start().line;
        let shown = self.text.get(signature).unwrap_or_default().lines();
        let code: Vec<&str> = shown.filter(|line| !line.trim_start().starts_with("//")).collect();
        let signature = one_line(&code.join(" "));
        let scope = self.scope.join("::");
        self.identifiers
            .push(format!("{kind} `{scope}::{name}`\n   `{signature}`\n   [{}:{line}]", self.path));
    }

    /// Adds an item. Its signature ends where its body begins.
    fn add_item(&mut self, kind: &str, visibility: &syn::Visibility, name: &syn::Ident, until: Span) {
        let keyword = kind.split(' ').next().unwrap_or_default();
        let named = name.span().byte_range().start;
        let start = match visibility {
            syn::Visibility::Inherited if kind == "field" => named,
            syn::Visibility::Inherited => named - keyword.len() - 1,
            shown => shown.span().byte_range().start,
        };
        self.add(kind, name, start..until.byte_range().end);
    }

    fn within(&mut self, owner: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(owner);
        visit(self);
        self.scope.pop();
    }

    fn add_function(&mut self, kind: &str, visibility: Span, signature: &syn::Signature) {
        let range = signature.span().byte_range();
        let shown = visibility.byte_range();
        let start = if shown.is_empty() { range.start } else { shown.start.min(range.start) };
        self.add(kind, &signature.ident, start..range.end);
    }

    /// Adds the help of flags, which is their documentation.
    fn add_help(&mut self, attributes: &[syn::Attribute], fields: &syn::Fields) {
        let is_arguments = attributes.iter().any(|attribute| {
            let derived = ["Args", "Parser", "Subcommand"];
            let syn::Meta::List(list) = &attribute.meta else { return false };
            list.path.is_ident("derive") && derived.iter().any(|name| list.tokens.to_string().contains(name))
        });
        for field in fields.iter().filter(|_| is_arguments) {
            let Some(name) = &field.ident else { continue };
            // A flattened field has no help: clap does not show its documentation.
            let Some(attribute) = field.attrs.iter().find(|attribute| attribute.path().is_ident("arg"))
            else {
                continue;
            };
            let doc = doc_text(&field.attrs);
            if is_sentence(&doc) {
                let line = name.span().start().line;
                let is_flag = matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string().contains("long"));
                let argument = match is_flag {
                    true => format!("flag `--{}`", name.to_string().replace('_', "-")),
                    false => format!("argument `{}`", name.to_string().to_uppercase()),
                };
                self.messages.push(format!("help of the {argument}: \"{doc}\"\n   [{}:{line}]", self.path));
            }
        }
    }
}

impl<'ast> Visit<'ast> for IdentifierVisitor<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add_item("struct", &item.vis, &item.ident, item.ident.span());
        self.add_help(&item.attrs, &item.fields);
        self.within(item.ident.to_string(), |this| visit::visit_item_struct(this, item));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add_item("enum", &item.vis, &item.ident, item.ident.span());
        self.within(item.ident.to_string(), |this| visit::visit_item_enum(this, item));
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.within(module.ident.to_string(), |this| visit::visit_item_mod(this, module));
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add_item("type alias", &item.vis, &item.ident, item.ty.span());
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.add_item("const", &item.vis, &item.ident, item.expr.span());
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.add_item("static", &item.vis, &item.ident, item.ty.span());
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        let start = variant.ident.span().byte_range().start;
        self.add("variant", &variant.ident, start..variant.span().byte_range().end);
        visit::visit_variant(self, variant);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.add_item("field", &field.vis, name, field.ty.span());
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add_function("function", function.vis.span(), &function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add_item("trait", &item.vis, &item.ident, item.ident.span());
        self.within(item.ident.to_string(), |this| visit::visit_item_trait(this, item));
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.add_function("method", Span::call_site(), &function.sig);
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        // The implementation of a trait does not choose its names.
        if block.trait_.is_none() {
            let owner = self.text.get(block.self_ty.span().byte_range()).unwrap_or_default();
            self.within(one_line(owner), |this| visit::visit_item_impl(this, block));
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add_function("method", function.vis.span(), &function.sig);
        visit::visit_impl_item_fn(self, function);
    }
}

fn add_prose(
    product: &Product,
    id: usize,
    messages: &mut Vec<String>,
    comments: &mut Vec<String>,
) -> Result<(), String> {
    let file = &product.files[id];
    let text = product.text(id);
    let lines: Vec<&str> = text.lines().collect();
    let found = prose(text).map_err(|error| format!("{}:{error}", file.path))?;
    for string in found.strings {
        // Only developers read the texts of `expect`.
        let is_for_users = string.callee.as_deref() != Some("expect") && !DATA_FILES.contains(&&*file.path);
        let is_shown = is_for_users && is_sentence(&string.text);
        if is_shown && !file.is_test_line(string.line) {
            let kind = message_kind(string.callee.as_deref());
            let message = one_line(&string.text);
            messages.push(format!("{kind}: \"{message}\"\n   [{}:{}]", file.path, string.line));
        }
    }
    for comment in found.comments {
        if !file.is_test_line(comment.first_line) && is_sentence(&comment.text) {
            comments.push(shown_comment(&comment, &file.path, &lines));
        }
    }
    Ok(())
}

/// Describes where readers meet a message.
fn message_kind(callee: Option<&str>) -> &'static str {
    match callee {
        Some("error" | "warn" | "info" | "debug" | "trace") => "log line",
        Some("println" | "print" | "eprintln") => "output",
        _ => "message",
    }
}

/// Returns the whole comment block and the first line of the code that it describes.
fn shown_comment(comment: &Comment, path: &str, lines: &[&str]) -> String {
    let is_code = |line: &&&str| !line.trim().is_empty() && !line.trim().starts_with("#[");
    let own = lines[comment.first_line - 1];
    let item = match own.trim_start().starts_with("//") {
        _ if comment.mark == "//!" => format!("the file `{path}`"),
        true => lines[comment.last_line..]
            .iter()
            .find(is_code)
            .map_or(String::new(), |line| format!("`{}`", one_line(line))),
        false => format!("`{}`", one_line(own.split("//").next().unwrap_or_default())),
    };
    let mut shown = format!("comment on {item}\n");
    for line in comment.text.lines() {
        let _ = writeln!(shown, "   > {line}");
    }
    let _ = write!(shown, "\n   [{path}:{}]", comment.first_line);
    shown
}

/// Returns the paragraphs and list items of the README, of `docs` and of the changelog, without code, tables and titles.
fn paragraphs(product: &Product) -> Vec<String> {
    let is_page = |path: &str| {
        matches!(path, "README.md" | "CHANGELOG.md") || path.starts_with("docs/") && path.ends_with(".md")
    };
    let mut found = Vec::new();
    for (path, text) in product.checkout.files.iter().filter(|(path, _)| is_page(path)) {
        let mut is_in_code = false;
        let (mut paragraph, mut first) = (String::new(), 1);
        for (index, line) in text.lines().chain([""]).enumerate() {
            is_in_code ^= line.trim_start().starts_with("```");
            let line = line.trim();
            let is_markup = line.starts_with("```") || line.starts_with(['#', '|', '!', '<']);
            let line = if is_in_code || is_markup { "" } else { line };
            let begins = line.is_empty() || is_list_item(line);
            if begins && !paragraph.is_empty() {
                if paragraph.split_whitespace().count() >= 12 {
                    found.push(format!("{path}:{first}\n   > {}", paragraph.trim()));
                }
                paragraph.clear();
            }
            if paragraph.is_empty() {
                first = index + 1;
            }
            paragraph = format!("{paragraph} {line}").trim_start().to_owned();
        }
    }
    found
}

/// Whether a line begins an item of a list: `- `, `* ` or `1. `.
fn is_list_item(line: &str) -> bool {
    let numbered = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
    line.starts_with("- ")
        || line.starts_with("* ")
        || numbered.len() < line.len() && numbered.starts_with(". ")
}

/// Whether a text has at least three words.
fn is_sentence(text: &str) -> bool {
    let is_word = |word: &&str| word.chars().filter(|letter| letter.is_alphabetic()).count() > 1;
    text.split_whitespace().filter(is_word).count() >= 3
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 240 {
        return line;
    }
    line.chars().take(239).chain(['…']).collect()
}

fn doc_text(attributes: &[syn::Attribute]) -> String {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        let syn::Meta::NameValue(pair) = &attribute.meta else { continue };
        let syn::Expr::Lit(value) = &pair.value else { continue };
        if let syn::Lit::Str(text) = &value.lit {
            lines.push(text.value().trim().to_owned());
        }
    }
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::one_crate;
    use super::*;

    const CODE: &str = "//! Owns the jobs of a cluster.\n\n/// A job that users submit.\npub struct Job {\n    /// Its first name.\n    pub name: String,\n}\n\nimpl Job {\n    pub(crate) fn cancel(\n        &mut self,\n    ) -> bool {\n        warn!(\"cannot cancel the job {}\", self.name);\n        true\n    }\n}\n\nimpl Drop for Job {\n    fn drop(&mut self) {}\n}\n\n#[cfg(test)]\nmod tests {\n    /// Not for the readers of samples.\n    fn hidden() {}\n}\n";

    #[test]
    fn module_paths_have_no_segment_for_the_root() {
        assert_eq!(
            module_path("feedline-client", "client/src/feed/credit.rs"),
            "feedline_client::feed::credit"
        );
        assert_eq!(module_path("feedline-client", "client/src/lib.rs"), "feedline_client");
    }

    #[test]
    fn each_item_names_its_kind_and_its_module() {
        let mut product = one_crate(&[("lib.rs", CODE)]);
        let page = "# Title\n\nA paragraph of more than twelve words that a reader\n`of` the documents reads from its start to its end.\n\n1. The first step of a guide, with more than twelve words in its one line.\n2. Short.\n\n```\ncode\n```\n- too short\n";
        product.checkout.files.insert("README.md".into(), page.into());
        let text = sample(&product, 1).unwrap();
        for part in [
            "struct `one::Job`\n   `pub struct Job`\n   [one/src/lib.rs:4]",
            "field `one::Job::name`\n   `pub name: String`\n   [one/src/lib.rs:6]",
            "method `one::Job::cancel`\n   `pub(crate) fn cancel( &mut self, ) -> bool`\n   [one/src/lib.rs:10]",
            "log line: \"cannot cancel the job {}\"\n   [one/src/lib.rs:13]",
            "comment on `pub struct Job {`\n   > A job that users submit.\n\n   [one/src/lib.rs:3]",
            "README.md:3\n   > A paragraph of more than twelve words that a reader `of` the documents",
            "README.md:6\n   > 1. The first step of a guide, with more than twelve words in its one line.",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("hidden") && !text.contains("drop") && !text.contains("Not for"), "{text}");
        assert_eq!(text, sample(&product, 1).unwrap());
    }
}
