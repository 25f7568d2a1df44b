//! The module tree of all crates: which names each module defines, imports and re-exports.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

use super::checkout::{Target, TargetKind};
use super::product::FileId;
use super::uses::{UseCollector, UsePath};

/// Index of a module.
pub type ModuleId = usize;

/// The modules of all crates.
#[derive(Default)]
pub struct Modules {
    all: Vec<Module>,
    /// Libraries by the name that paths use.
    libraries: BTreeMap<String, ModuleId>,
    /// Files that define a `macro_rules!` macro, by crate root and the macro's name.
    macros: BTreeMap<(ModuleId, String), FileId>,
}

/// A module, inline or in its own file.
pub struct Module {
    /// The file that contains the module.
    pub file: FileId,
    parent: Option<ModuleId>,
    root: ModuleId,
    children: BTreeMap<String, ModuleId>,
    /// Names of the items defined here.
    items: BTreeMap<String, FileId>,
    /// Variants of the enums defined here.
    variants: BTreeMap<String, BTreeSet<String>>,
    /// Imports and re-exports: name to path.
    bindings: BTreeMap<String, UsePath>,
    globs: Vec<UsePath>,
    /// Whether a macro that reads generated code defines further items.
    has_generated_items: bool,
}

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// A module.
    Module(ModuleId),
    /// An item, or a part of one, defined in this file.
    Item {
        /// The file that defines the item.
        file: FileId,
        /// The module, if the item may be an enum whose variants are imported.
        owner: Option<(ModuleId, String)>,
    },
}

/// A declaration `mod name;` and the files that may contain the module.
pub struct DeclaredModule {
    /// The module that declares it.
    pub parent: ModuleId,
    /// Its name.
    pub name: String,
    /// Possible paths, in the order of the compiler.
    pub candidates: Vec<String>,
}

impl Module {
    /// Whether it is inside the file of the enclosing module.
    pub fn is_inline(&self, modules: &Modules) -> bool {
        self.parent.is_some_and(|parent| modules.all[parent].file == self.file)
    }
}

impl Modules {
    /// Returns the modules with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ModuleId, &Module)> {
        self.all.iter().enumerate()
    }

    /// Returns a module.
    pub fn get(&self, module: ModuleId) -> &Module {
        &self.all[module]
    }

    /// Returns the module with this name that is declared inside another module.
    pub fn child(&self, module: ModuleId, name: &str) -> Option<ModuleId> {
        self.all[module].children.get(name).copied()
    }

    /// Adds the root of a crate.
    pub fn add_root(&mut self, target: &Target, file: FileId) -> ModuleId {
        let id = self.add(file, None);
        if target.kind == TargetKind::Library {
            self.libraries.insert(target.name.clone(), id);
        }
        id
    }

    /// Adds a module inside another.
    pub fn add_child(&mut self, parent: ModuleId, name: &str, file: FileId) -> ModuleId {
        let id = self.add(file, Some(parent));
        self.all[parent].children.insert(name.to_owned(), id);
        id
    }

    fn add(&mut self, file: FileId, parent: Option<ModuleId>) -> ModuleId {
        let id = self.all.len();
        self.all.push(Module {
            file,
            parent,
            root: parent.map_or(id, |parent| self.all[parent].root),
            children: BTreeMap::new(),
            items: BTreeMap::new(),
            variants: BTreeMap::new(),
            bindings: BTreeMap::new(),
            globs: Vec::new(),
            has_generated_items: false,
        });
        id
    }

    /// Adds the items of a module to the module and its inline modules. Returns the modules that are in their own files.
    pub fn fill(
        &mut self,
        module: ModuleId,
        items: &[syn::Item],
        path: &str,
        is_root: bool,
    ) -> Vec<DeclaredModule> {
        let folder = folder_of_children(path, is_root);
        let mut declared = Vec::new();
        self.fill_in_folder(module, items, path, &folder, &mut declared);
        declared
    }

    fn fill_in_folder(
        &mut self,
        module: ModuleId,
        items: &[syn::Item],
        path: &str,
        folder: &str,
        declared: &mut Vec<DeclaredModule>,
    ) {
        for item in items {
            let syn::Item::Mod(inner) = item else {
                self.define(module, item);
                continue;
            };
            let name = inner.ident.to_string();
            let inner_folder = format!("{folder}/{}", name.trim_start_matches("r#"));
            if let Some((_, inner_items)) = &inner.content {
                let child = self.add_child(module, &name, self.all[module].file);
                self.fill_in_folder(child, inner_items, path, &inner_folder, declared);
            } else {
                let candidates = match path_attribute(&inner.attrs) {
                    Some(given) => vec![format!("{}/{given}", parent_folder(path))],
                    None => vec![format!("{inner_folder}.rs"), format!("{inner_folder}/mod.rs")],
                };
                declared.push(DeclaredModule { parent: module, name, candidates });
            }
        }
    }

    fn define(&mut self, module: ModuleId, item: &syn::Item) {
        use syn::Item;
        match item {
            Item::Const(item) => self.define_name(module, &item.ident),
            Item::Enum(item) => {
                self.define_name(module, &item.ident);
                let variants = item.variants.iter().map(|variant| variant.ident.to_string()).collect();
                self.all[module].variants.insert(item.ident.to_string(), variants);
            }
            Item::Fn(item) => self.define_name(module, &item.sig.ident),
            Item::Static(item) => self.define_name(module, &item.ident),
            Item::Struct(item) => self.define_name(module, &item.ident),
            Item::Trait(item) => self.define_name(module, &item.ident),
            Item::Type(item) => self.define_name(module, &item.ident),
            Item::Union(item) => self.define_name(module, &item.ident),
            Item::Macro(item) => self.define_macro(module, item),
            _ => {}
        }
        let mut uses = UseCollector { leaves: Vec::new() };
        uses.visit_item(item);
        for leaf in uses.leaves {
            if leaf.is_glob {
                self.all[module].globs.push(leaf.path);
            } else if let Some(name) = leaf.name {
                self.all[module].bindings.entry(name).or_insert(leaf.path);
            }
        }
    }

    fn define_name(&mut self, module: ModuleId, name: &syn::Ident) {
        let file = self.all[module].file;
        self.all[module].items.insert(name.to_string(), file);
    }

    /// `macro_rules!` defines a macro; other macros may define an item for each name in their arguments.
    fn define_macro(&mut self, module: ModuleId, item: &syn::ItemMacro) {
        let Module { file, root, .. } = self.all[module];
        if let Some(name) = &item.ident {
            self.define_name(module, name);
            self.macros.insert((root, name.to_string()), file);
            if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                self.all[root].items.insert(name.to_string(), file);
            }
            return;
        }
        let is_include = |segment: &syn::PathSegment| segment.ident.to_string().starts_with("include");
        self.all[module].has_generated_items |= item.mac.path.segments.last().is_some_and(is_include);
        let mut names = BTreeSet::new();
        collect_names(item.mac.tokens.clone(), &mut names);
        for name in names {
            self.all[module].items.entry(name).or_insert(file);
        }
    }

    /// Returns what a path in the module `from` refers to; `None` for names from the standard library, from other packages,
    /// and of local variables.
    pub fn resolve(&self, from: ModuleId, path: &UsePath) -> Option<Named> {
        self.resolve_guarded(from, path, &mut BTreeSet::new())
    }

    /// Returns the file that defines a `macro_rules!` macro of the same crate, which other modules may use without a path.
    pub fn textual_macro(&self, from: ModuleId, name: &str) -> Option<FileId> {
        self.macros.get(&(self.all[from].root, name.to_owned())).copied()
    }

    fn resolve_guarded(&self, from: ModuleId, path: &UsePath, seen: &mut Visited) -> Option<Named> {
        let (first, mut rest) = path.segments.split_first()?;
        let mut at = match first.as_str() {
            _ if path.is_global => Named::Module(*self.libraries.get(first)?),
            "crate" => Named::Module(self.all[from].root),
            "self" => Named::Module(from),
            "super" => Named::Module(self.all[from].parent?),
            name => {
                let found = self.lookup(from, name, rest.is_empty(), seen);
                found.or_else(|| self.libraries.get(name).copied().map(Named::Module))?
            }
        };
        while let Some((name, further)) = rest.split_first() {
            at = match at {
                Named::Module(module) if name == "super" => Named::Module(self.all[module].parent?),
                Named::Module(module) => self.lookup(module, name, further.is_empty(), seen)?,
                // An associated item or a variant is in the file of its type.
                Named::Item { file, .. } => Named::Item { file, owner: None },
            };
            rest = further;
        }
        Some(at)
    }

    fn lookup(&self, id: ModuleId, name: &str, is_last: bool, seen: &mut Visited) -> Option<Named> {
        let module = &self.all[id];
        let item = |file: &FileId| Named::Item { file: *file, owner: Some((id, name.to_owned())) };
        let own_item = module.items.get(name).map(item);
        let child = module.children.get(name).copied().map(Named::Module);
        let own = if is_last { own_item.or(child) } else { child.or(own_item) };
        if own.is_some() {
            return own;
        }
        if !seen.insert((id, name.to_owned())) {
            return None;
        }
        if let Some(path) = module.bindings.get(name) {
            // If the path does not resolve, a glob import may define the name.
            if let Some(found) = self.resolve_binding(id, name, path, seen) {
                return Some(found);
            }
        }
        for glob in &module.globs {
            let found = match self.resolve_guarded(id, glob, &mut seen.clone()) {
                Some(Named::Module(other)) => self.lookup(other, name, is_last, seen),
                Some(Named::Item { file, owner: Some((owner, of)) }) => {
                    let variants = self.all[owner].variants.get(&of);
                    let is_variant = variants.is_some_and(|variants| variants.contains(name));
                    is_variant.then_some(Named::Item { file, owner: None })
                }
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
        let may_be_type = name.starts_with(char::is_uppercase) || !is_last;
        (module.has_generated_items && may_be_type).then(|| item(&module.file))
    }

    /// Resolves the path of a `use` item. In items such as `use serde::serde;`, the first part of the path is not the name
    /// that the `use` binds.
    fn resolve_binding(&self, id: ModuleId, name: &str, path: &UsePath, seen: &mut Visited) -> Option<Named> {
        if path.segments.first().is_some_and(|first| first == name) && !path.is_global {
            let library = self.libraries.contains_key(name);
            return library
                .then(|| self.resolve_guarded(id, &UsePath { is_global: true, ..path.clone() }, seen))?;
        }
        self.resolve_guarded(id, path, seen)
    }
}

type Visited = BTreeSet<(ModuleId, String)>;

fn collect_names(tokens: TokenStream, names: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                let name = name.to_string();
                // Types and constants start with an uppercase letter. Other words are fields and keywords.
                if name.starts_with(char::is_uppercase) {
                    names.insert(name);
                }
            }
            TokenTree::Group(group) => collect_names(group.stream(), names),
            _ => {}
        }
    }
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(value) = &pair.value else { return None };
    let syn::Lit::Str(text) = &value.lit else { return None };
    Some(text.value())
}

fn parent_folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the directory of a file's child modules: the directory of a crate root or `mod.rs`, otherwise a directory with the file's name.
fn folder_of_children(path: &str, is_root: bool) -> String {
    if is_root || path.ends_with("/mod.rs") {
        return parent_folder(path).to_owned();
    }
    path.trim_end_matches(".rs").to_owned()
}
