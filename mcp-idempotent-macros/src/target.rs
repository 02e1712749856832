//! Parses the annotated method.

use quote::format_ident;
use syn::{
    Attribute, Expr, FnArg, GenericArgument, GenericParam, Ident, ImplItemFn, Meta, MetaList, Path,
    PathArguments, PathSegment, Receiver, ReceiverKind, ReturnType, Token, Type, TypeParamBound,
    punctuated::Punctuated,
};

use crate::diagnostics::{self, Errors};

pub(crate) struct Target {
    /// The method as written, except for its new name and without `#[tool]`.
    pub(crate) original: ImplItemFn,
    /// The tool's name in Rust.
    pub(crate) name: Ident,
    /// Documentation and `cfg` attributes, which both methods get.
    pub(crate) shared: Vec<Attribute>,
    pub(crate) tool: Tool,
    pub(crate) receiver: Receiver,
    pub(crate) parameters: Vec<Parameter>,
    /// The type that rmcp reads the input schema from.
    pub(crate) input: Option<Type>,
    /// The type that rmcp reads the output schema from.
    pub(crate) output: Option<Type>,
    /// Whether calling the method returns a future.
    pub(crate) is_async: bool,
}

pub(crate) enum Parameter {
    /// The `&mut` parameter.
    Connection(Type),
    /// A parameter that rmcp extracts from the call.
    Extracted(Type),
}

/// The `#[tool(…)]` attribute.
pub(crate) struct Tool {
    pub(crate) path: Path,
    /// The options that are passed on unchanged.
    pub(crate) options: Vec<Meta>,
    pub(crate) meta: Option<Expr>,
    pub(crate) input_schema: Option<Expr>,
    /// Also among the options.
    pub(crate) output_schema: Option<Expr>,
    /// Says that the tool only reads. Also among the options.
    pub(crate) read_only: Option<Meta>,
}

impl Target {
    /// Parses the method, and reports everything that is wrong with it together.
    pub(crate) fn parse(mut function: ImplItemFn) -> syn::Result<Self> {
        let name = function.sig.ident.clone();
        let Some(tool) = take_tool(&mut function) else {
            return Err(diagnostics::no_tool(&name));
        };
        let mut errors = Errors::default();
        let tool = match Tool::parse(&tool) {
            Ok(tool) => Some(tool),
            Err(error) => {
                errors.push(error);
                None
            }
        };
        let receiver = match receiver(&function) {
            Ok(receiver) => Some(receiver.clone()),
            Err(error) => {
                errors.push(error);
                None
            }
        };
        if let Some(parameter) = type_parameter(&function) {
            errors.push(parameter);
        }
        let parameters = parameters(&function, &mut errors);
        errors.into_result()?;
        let (Some(tool), Some(receiver)) = (tool, receiver) else {
            return Err(diagnostics::no_tool(&name));
        };
        let input = parameters.iter().find_map(|parameter| match parameter {
            Parameter::Extracted(ty) if is_named(ty, "Parameters") => Some(ty.clone()),
            _ => None,
        });
        let boxed = returns_future(&function.sig.output);
        let output = match &function.sig.output {
            ReturnType::Type(_, ty) if !boxed => json_of(ty).cloned(),
            _ => None,
        };
        let shared = function
            .attrs
            .iter()
            .filter(|attr| attr.path().is_ident("doc") || attr.path().is_ident("cfg"))
            .cloned()
            .collect();
        let is_async = boxed || function.sig.asyncness.is_some();
        function.sig.ident = unprotected(&name);
        Ok(Self {
            original: function,
            name,
            shared,
            tool,
            receiver,
            parameters,
            input,
            output,
            is_async,
        })
    }

    /// The `Attempt` parameter of lease mode.
    pub(crate) fn attempt(&self) -> Option<&Type> {
        self.parameters
            .iter()
            .find_map(|parameter| match parameter {
                Parameter::Extracted(ty) if is_named(ty, "Attempt") => Some(ty),
                _ => None,
            })
    }

    /// The `&mut` parameter.
    pub(crate) fn connection(&self) -> Option<&Type> {
        self.parameters
            .iter()
            .find_map(|parameter| match parameter {
                Parameter::Connection(ty) => Some(ty),
                Parameter::Extracted(_) => None,
            })
    }
}

/// The new name of the original method.
pub(crate) fn unprotected(name: &Ident) -> Ident {
    format_ident!("{name}_unprotected")
}

pub(crate) fn is_tool(attr: &Attribute) -> bool {
    attr.path()
        .segments
        .last()
        .is_some_and(|segment| segment.ident == "tool")
}

fn take_tool(function: &mut ImplItemFn) -> Option<Attribute> {
    let index = function.attrs.iter().position(is_tool)?;
    Some(function.attrs.remove(index))
}

impl Tool {
    fn parse(attr: &Attribute) -> syn::Result<Self> {
        let mut tool = Self {
            path: attr.path().clone(),
            options: Vec::new(),
            meta: None,
            input_schema: None,
            output_schema: None,
            read_only: None,
        };
        let Meta::List(list) = &attr.meta else {
            return Ok(tool);
        };
        let options = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)?;
        for option in options {
            match option {
                Meta::NameValue(option) if option.path.is_ident("meta") => {
                    tool.meta = Some(expression(option.value)?);
                }
                Meta::NameValue(option) if option.path.is_ident("input_schema") => {
                    tool.input_schema = Some(expression(option.value)?);
                }
                option => {
                    if is_local(&option) {
                        return Err(diagnostics::local_tool(&option));
                    }
                    if let Meta::NameValue(schema) = &option
                        && schema.path.is_ident("output_schema")
                    {
                        tool.output_schema = Some(expression(schema.value.clone())?);
                    }
                    if let Meta::List(annotations) = &option
                        && annotations.path.is_ident("annotations")
                    {
                        tool.read_only = read_only(annotations);
                    }
                    tool.options.push(option);
                }
            }
        }
        Ok(tool)
    }
}

/// rmcp also accepts an expression in quotes.
fn expression(value: Expr) -> syn::Result<Expr> {
    match &value {
        Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Str(text) => text.parse(),
            _ => Ok(value),
        },
        _ => Ok(value),
    }
}

/// `read_only_hint = true` among the annotations.
fn read_only(annotations: &MetaList) -> Option<Meta> {
    let parsed = annotations.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    // What does not parse is reported by `#[tool]`.
    parsed.ok()?.into_iter().find(|hint| {
        let Meta::NameValue(hint) = hint else {
            return false;
        };
        let value = &hint.value;
        hint.path.is_ident("read_only_hint")
            && matches!(value, Expr::Lit(literal) if matches!(&literal.lit, syn::Lit::Bool(yes) if yes.value))
    })
}

/// `local` or `local = true`.
fn is_local(option: &Meta) -> bool {
    match option {
        Meta::Path(path) => path.is_ident("local"),
        Meta::NameValue(option) if option.path.is_ident("local") => !matches!(
            &option.value,
            Expr::Lit(literal) if matches!(&literal.lit, syn::Lit::Bool(value) if !value.value)
        ),
        _ => false,
    }
}

fn receiver(function: &ImplItemFn) -> syn::Result<&Receiver> {
    let Some(receiver) = function.sig.receiver() else {
        return Err(diagnostics::no_receiver(&function.sig.ident));
    };
    let found = match &receiver.kind {
        ReceiverKind::Reference(_, _, None) => return Ok(receiver),
        ReceiverKind::Reference(_, _, Some(_)) => "&mut self",
        ReceiverKind::Value => "self",
        _ => "self: …",
    };
    Err(diagnostics::wrong_receiver(receiver, found))
}

fn type_parameter(function: &ImplItemFn) -> Option<syn::Error> {
    function.sig.generics.params.iter().find_map(|parameter| {
        (!matches!(parameter, GenericParam::Lifetime(_))).then(|| diagnostics::generic(parameter))
    })
}

fn parameters(function: &ImplItemFn, errors: &mut Errors) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    let mut connections = 0_usize;
    for input in &function.sig.inputs {
        let FnArg::Typed(parameter) = input else {
            continue;
        };
        let ty = bare(&parameter.ty).clone();
        match &ty {
            Type::Reference(reference) if reference.mutability.is_some() => {
                connections += 1;
                if connections > 1 {
                    errors.push(diagnostics::second_connection(&ty));
                }
                parameters.push(Parameter::Connection(ty));
            }
            Type::ImplTrait(_) => errors.push(diagnostics::generic(&ty)),
            ty if is_of_a_database(ty) => errors.push(diagnostics::no_open_transaction(ty)),
            _ => parameters.push(Parameter::Extracted(ty)),
        }
    }
    parameters
}

/// Whether the author wants a transaction, but asks for it in a way that does not lend one.
fn is_of_a_database(ty: &Type) -> bool {
    let inner = match ty {
        Type::Reference(reference) => bare(&reference.elem),
        ty => ty,
    };
    let Some(segment) = last_segment(inner) else {
        return false;
    };
    let is_generic = !matches!(segment.arguments, PathArguments::None);
    match segment.ident.to_string().as_str() {
        "PgConnection" | "SqliteConnection" | "PgPool" | "SqlitePool" => true,
        "Transaction" | "Tx" | "Pool" | "PoolConnection" => is_generic,
        _ => false,
    }
}

/// Strips parentheses, and the invisible groups that other macros leave.
fn bare(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Paren(paren) => &paren.elem,
            Type::Group(group) => &group.elem,
            _ => return ty,
        };
    }
}

fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match bare(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

fn is_named(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name)
}

fn type_arguments(segment: &PathSegment) -> impl Iterator<Item = &Type> {
    let arguments = match &segment.arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    };
    arguments
        .into_iter()
        .flatten()
        .filter_map(|argument| match argument {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        })
}

/// The `T` of `Json<T>` or `Result<Json<T>, E>`, where rmcp looks for an output schema.
fn json_of(ty: &Type) -> Option<&Type> {
    let segment = last_segment(ty)?;
    let first = type_arguments(segment).next()?;
    if segment.ident == "Json" {
        return Some(first);
    }
    if segment.ident != "Result" || !is_named(first, "Json") {
        return None;
    }
    type_arguments(last_segment(first)?).next()
}

/// Whether a function that is not `async` returns a future: `Pin<Box<dyn Future<…>>>` (left by
/// other macros), `BoxFuture<'_, T>` or `impl Future<…>`.
fn returns_future(output: &ReturnType) -> bool {
    let ReturnType::Type(_, ty) = output else {
        return false;
    };
    if let Type::ImplTrait(future) = bare(ty) {
        return future.bounds.iter().any(is_future);
    }
    let Some(segment) = last_segment(ty) else {
        return false;
    };
    if segment.ident == "BoxFuture" || segment.ident == "MaybeBoxFuture" {
        return true;
    }
    let boxed = match type_arguments(segment).next() {
        Some(inner) if segment.ident == "Pin" => last_segment(inner),
        _ => None,
    };
    boxed
        .and_then(|segment| type_arguments(segment).next())
        .is_some_and(|inner| match bare(inner) {
            Type::TraitObject(object) => object.bounds.iter().any(is_future),
            _ => false,
        })
}

fn is_future(bound: &TypeParamBound) -> bool {
    match bound {
        TypeParamBound::Trait(bound) => bound
            .path
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "Future"),
        _ => false,
    }
}
