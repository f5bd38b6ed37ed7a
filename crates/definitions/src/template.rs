//! Jinja templates with Python semantics.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::panics;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error as JinjaError, ErrorKind, Output, State, UndefinedBehavior, Value as Jinja};

use crate::bounds::check_operators;
use crate::exchange::{MAX_BYTES, printed, python, text, variables};
use crate::jinja::rewrite::rewrite_operators;
use crate::jinja::{extend, reset_render_state};
use crate::method::{self, METHODS};
use crate::value::{JsonStyle, Value};
use crate::yaml::SourceLocation;

/// Maximum number of minijinja instructions per rendering. The limit stops long loops.
const MAX_FUEL: u64 = 2_000_000;
/// Lower bound on the step limit, which decreases with the length of the template. Real templates use far fewer steps.
const MIN_FUEL: u64 = 100_000;
/// Maximum factor by which the assignments in a template may lengthen a string. One assignment can double a string.
const MAX_GROWTH: f64 = 100_000.0;

/// Rejects assignments that could make strings grow exponentially, and references to other templates.
fn check_growth(source: &str) -> Result<()> {
    let mut growth = 1.0;
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        rest = rest[open + 2..].trim_start_matches(['-', '+']).trim_start();
        let end = rest.find("%}").unwrap_or(rest.len());
        let tag = &rest[..end];
        let word = tag.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
        match word {
            "include" | "import" | "from" | "extends" | "block" => {
                return Err(Error::bad_input(format!("`{word}` in a template is not supported"))
                    .expected("if, for, set, with, macro, call and filter")
                    .found(tag.trim().to_owned()));
            }
            "set" | "with" if tag.contains('=') => growth *= growth_factor(tag, &['~', '+']),
            "set" | "filter" => {
                let block = rest.find("endset").or_else(|| rest.find("endfilter")).unwrap_or(rest.len());
                growth *= growth_factor(&rest[..block], &['{', '~', '+']);
            }
            _ => {}
        }
        rest = &rest[end..];
    }
    if growth <= MAX_GROWTH {
        return Ok(());
    }
    Err(Error::bad_input("the assignments in a template may create strings larger than the available memory")
        .expected(format!("strings that grow by a factor of at most {MAX_GROWTH}"))
        .found(format!("a factor of up to {growth:.0}")))
}

/// Returns the factor by which an assignment may lengthen a string: 1 plus the number of operators (`marks`) in it.
fn growth_factor(text: &str, marks: &[char]) -> f64 {
    1.0 + text.matches(marks).count() as f64
}

/// Compiled template from a definition. Undefined names are errors, and a trailing newline is kept.
#[derive(Clone)]
pub struct Template {
    environment: Environment<'static>,
    source: String,
    location: SourceLocation,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.source)
    }
}

impl Template {
    /// Compiles a template. `location` is used in error messages.
    ///
    /// # Errors
    /// Fails if the template is invalid or uses an unsupported filter, test or method.
    pub fn new(source: &str, location: &SourceLocation) -> Result<Self> {
        static STRICT_ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
            let mut environment = create_environment();
            environment.set_undefined_behavior(UndefinedBehavior::Strict);
            if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
                environment.set_syntax(syntax);
            }
            environment.add_filter("tojson", |value: Jinja, indent: Option<usize>, kwargs: Kwargs| {
                let indent = indent.or(kwargs.get("indent")?);
                kwargs.assert_all_used()?;
                let style = JsonStyle { indent, ascii: true, sorted: true, ..JsonStyle::default() };
                let json = python(&value)?.json_in(&style);
                let json = json.replace('<', "\\u003c").replace('>', "\\u003e");
                Ok::<_, JinjaError>(json.replace('&', "\\u0026").replace('\'', "\\u0027"))
            });
            environment
        });
        check_growth(source).and_then(|()| check_operators(source)).map_err(|error| error.at(location))?;
        let environment = compile(&STRICT_ENVIRONMENT, source).map_err(|error| template_error(&error).at(location))?;
        check_names(&environment, source).map_err(|error| error.at(location))?;
        Ok(Self { environment, source: source.to_owned(), location: location.clone() })
    }

    pub(crate) fn location(&self) -> &SourceLocation {
        &self.location
    }

    /// Renders the template for a document.
    ///
    /// # Errors
    /// Fails if a column is missing, the template raises an exception, or the step limit is exceeded.
    pub fn render(&self, document: &Value) -> Result<String> {
        let template =
            self.environment.get_template("it").map_err(|error| template_error(&error).at(&self.location))?;
        reset_render_state();
        render_catching_panics(|| template.render(variables(document))).map_err(|error| {
            let Value::Map(pairs) = document else { return template_error(&error).at(&self.location) };
            let columns: Vec<&str> = pairs.iter().filter_map(|(name, _)| name.as_text()).collect();
            let named: BTreeSet<String> = template.undeclared_variables(false).into_iter().collect();
            let absent: Vec<String> = named
                .into_iter()
                .filter(|name| {
                    !columns.contains(&name.as_str()) && self.environment.globals().all(|(global, _)| global != name)
                })
                .collect();
            if error.kind() != ErrorKind::UndefinedError || absent.is_empty() {
                return template_error(&error).at(&self.location);
            }
            Error::bad_input("a template reads a column that the document does not have")
                .at(&self.location)
                .expected(format!("one of {}", columns.join(", ")))
                .found(absent.join(", "))
                .hint(
                    "check the dataset's columns: they may have been renamed, or may be different for this \
                     `dataset_name`",
                )
        })
    }
}

/// Creates the base environment for all templates: Python formatting, methods and filters, and a step limit.
pub(crate) fn create_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(MAX_FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Jinja| {
        // Only the result of an inline `if` without `else` can be undefined here. minijinja rejects all other undefined
        // values.
        if !value.is_undefined() {
            let text = text(value)?;
            printed(text.len())?;
            out.write_str(&text)?;
        }
        Ok(())
    });
    environment.set_unknown_method_callback(method::call);
    extend(&mut environment);
    environment
}

/// Runs `render` and converts panics in the template engine into errors. minijinja panics when it slices an empty text
/// backwards.
pub(crate) fn render_catching_panics(
    render: impl FnOnce() -> std::result::Result<String, JinjaError>,
) -> std::result::Result<String, JinjaError> {
    panics::catch(render).unwrap_or_else(|panic| Err(JinjaError::new(ErrorKind::InvalidOperation, panic)))
}

/// Compiles a template under the name `it`.
pub(crate) fn compile(
    base: &Environment<'static>,
    source: &str,
) -> std::result::Result<Environment<'static>, JinjaError> {
    let mut environment = base.clone();
    // One step outputs at most the whole source, so this many steps stay within `MAX_BYTES`.
    let steps = (MAX_BYTES / source.len().max(1)) as u64;
    environment.set_fuel(Some(steps.clamp(MIN_FUEL, MAX_FUEL)));
    // Jinja normalizes line endings.
    environment.add_template_owned("it", rewrite_operators(&source.replace("\r\n", "\n").replace('\r', "\n"))?)?;
    Ok(environment)
}

/// Converts a template engine error into an [`Error`].
pub(crate) fn template_error(error: &JinjaError) -> Error {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let line = error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"));
    let mut innermost = String::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        innermost = format!(": {cause}");
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => Error::bad_input("a template exceeds the step limit")
            .expected(format!("at most {MAX_FUEL} steps, or fewer for a long template"))
            .hint(format!("check for an endless loop{line}")),
        ErrorKind::UndefinedError => Error::bad_input(format!("a template uses an undefined value{line}"))
            .expected("a column, field or item of the document")
            .hint(format!("{detail}{innermost}")),
        _ => Error::bad_input(format!("a template cannot be rendered{line}: {detail}{innermost}"))
            .hint("use only the Jinja filters and Python methods that task definitions support"),
    }
}

/// Rejects unsupported filters, tests and methods before rendering.
fn check_names(environment: &Environment<'static>, source: &str) -> Result<()> {
    for (kind, name) in find_names(source) {
        let known = match kind {
            "filter" => {
                let outcome = environment.empty_state().apply_filter(&name, &[]);
                !matches!(outcome, Err(error) if error.kind() == ErrorKind::UnknownFilter)
            }
            "test" => {
                let outcome = environment.empty_state().perform_test(&name, &[]);
                !matches!(outcome, Err(error) if error.kind() == ErrorKind::UnknownTest)
            }
            _ => METHODS.contains(&name.as_str()),
        };
        if !known {
            return Err(Error::bad_input(format!("a template uses an unsupported {kind}"))
                .expected(format!("a {kind} that task definitions support"))
                .found(name));
        }
    }
    Ok(())
}

/// Returns the filters, tests and methods used in a template as pairs such as `("filter", "trim")`. Each tag is listed
/// with its filters first, then its tests, then its methods.
fn find_names(source: &str) -> Vec<(&'static str, String)> {
    let tokens = tokenize(source, false, SyntaxConfig::default());
    let tokens: Vec<Token<'_>> = tokens.map_while(|token| Some(token.ok()?.0)).collect();
    let tags = tokens.split(|token| matches!(token, Token::VariableEnd | Token::BlockEnd));
    tags.flat_map(find_names_in_tag).collect()
}

/// Returns the filters, tests and methods in the tokens of one tag, sorted by kind.
fn find_names_in_tag(tokens: &[Token<'_>]) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let is_in_loop = at > 0 && matches!(tokens[at - 1], Token::Ident("loop"));
        let (kind, name) = match &tokens[at..] {
            [Token::Pipe, Token::Ident(name), ..] => ("filter", name),
            [Token::Ident("is"), Token::Ident("not"), Token::Ident(name), ..]
            | [Token::Ident("is"), Token::Ident(name), ..] => ("test", name),
            [Token::Dot, Token::Ident(name), Token::ParenOpen, ..] if !is_in_loop => ("method", name),
            _ => continue,
        };
        found.push((kind, (*name).to_owned()));
    }
    // The sort is stable, so names of one kind stay in the order of the template.
    found.sort_by_key(|(kind, _)| ["filter", "test", "method"].iter().position(|other| other == kind));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, document: &str) -> Result<String> {
        let location = SourceLocation { file: "f.yaml".into(), line: 3 };
        Template::new(source, &location)?.render(&serde_json::from_str(document).unwrap())
    }

    /// The expected texts were rendered by Jinja 3.1, set up as in lm-evaluation-harness.
    #[test]
    fn templates_print_values_as_in_python() {
        let all = [
            (
                "{{a}} {{b}} {{c}} {{d}}\n",
                r#"{"a": true, "b": null, "c": 1.0, "d": ["x", "it's"]}"#,
                "True None 1.0 ['x', \"it's\"]\n",
            ),
            ("{{m}}", r#"{"m": {"z": 1, "a": [2.5]}}"#, "{'z': 1, 'a': [2.5]}"),
            ("{{a.strip()}}|{{a[0:2]}}|{{a[-1]}}", r#"{"a": " bc "}"#, "bc| b| "),
            ("{{c.index(k)}} {{c[k2-1]}}", r#"{"c": ["A", "B"], "k": "B", "k2": 1}"#, "1 A"),
            ("{{'no' if x is not none else 'yes'}}", r#"{"x": null}"#, "yes"),
            ("{% if y is defined %}1{% else %}2{% endif %}", r#"{"x": null}"#, "2"),
            ("{{ 'A' + x|string }} {{ l|join(' ') }}", r#"{"x": 2, "l": [1, true]}"#, "A2 1 True"),
            ("a\r\nb {{'\\n'}}", "{}", "a\nb \n"),
            ("{{ items.text[1] }} {{ a.b.c }}", r#"{"items": {"text": [1, 2]}, "a": {"b": {"c": 7}}}"#, "2 7"),
            ("{%- for x in l -%} {{x}}, {%- endfor -%}", r#"{"l": [1, 2]}"#, "1,2,"),
            ("{{ x.split(', ')[0].capitalize() }}", r#"{"x": "ab CD, e"}"#, "Ab cd"),
            ("{{ l | map(attribute='t') | list }}", r#"{"l": [{"t": 1}, {"t": "b"}]}"#, "[1, 'b']"),
            ("{% set x = n - 1 %}{{ x }} {{ n + 1 }} {{ not n }}", r#"{"n": 3}"#, "2 4 False"),
        ];
        for (source, document, expected) in all {
            assert_eq!(render(source, document).unwrap(), expected, "{source}");
        }
    }

    #[test]
    fn template_error_has_location_and_cause() {
        let missing = render_error("{{ answer }}");
        assert!(
            missing.contains("f.yaml:3") && missing.contains("answer") && missing.contains("question"),
            "{missing}"
        );
        assert!(
            render_error("{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}")
                .contains("end")
        );
        assert!(render_error("{{ x").contains("f.yaml:3"));
        assert!(render_error("{{ question | shout }}").contains("shout"));
        assert!(render_error("{{ question is shouted }}").contains("shouted"));
        assert!(render_error("{{ question.shout() }}").contains("shout"));
        assert!(render_error("{{ question.field }}").contains("undefined value"));
        assert!(render_error("{{ [1].index(2) }}").contains("not in the list"));
        assert!(render_error("{{ 1 / 0 }}").contains("f.yaml:3"));
        let doubled = "{% set x = x ~ x %}".repeat(40);
        assert!(render_error(&format!("{{% set x = 'ab' %}}{doubled}{{{{ x }}}}")).contains("memory"));
        let caught = "{% set x %}{{ x }}{{ x }}{% endset %}".repeat(40);
        assert!(render_error(&format!("{{% set x = 'ab' %}}{caught}{{{{ x }}}}")).contains("memory"));
        assert!(
            render_error("{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}")
                .contains("f.yaml:3")
        );
        assert!(
            render_error("{% set x = 'a' * 9000000 %}{% for i in range(90000) %}{{ x }}{% endfor %}")
                .contains("the rendered text exceeds")
        );
        assert!(render_error("{{ (['a' * 9000000] * 9000) | join('-') }}").contains("the rendered text exceeds"));
        assert!(render_error("{% include 'other' %}").contains("include"));
    }

    #[test]
    fn names_are_found_by_kind_within_each_tag() {
        let source = "{{ x.foo() | bar }}{% if a is odd and b is not even or c.get(d | trim) %}{% endif %}";
        let names = find_names(source);
        let names: Vec<(&str, &str)> = names.iter().map(|(kind, name)| (*kind, name.as_str())).collect();
        let first_tag = [("filter", "bar"), ("method", "foo")];
        let second_tag = [("filter", "trim"), ("test", "odd"), ("test", "even"), ("method", "get")];
        assert_eq!(names, [&first_tag[..], &second_tag[..]].concat());
        let message = render_error("{{ question.foo() | bar }}");
        assert!(message.contains("bar") && !message.contains("foo"), "{message}");
    }

    #[test]
    fn names_outside_of_code_are_ignored() {
        for source in [
            "x | foo, x is foo and x.foo()",
            "{# {{ x | foo }} {{ x is foo }} {{ x.foo() }} #}",
            "{% raw %}{{ x | foo }} {{ x is foo }} {{ x.foo() }}{% endraw %}",
            r#"{{ "x | foo, x is foo and x.foo()" }}{{ 'it\'s x | foo, x is foo and x.foo()' }}"#,
            "{% for x in y %}{{ loop.cycle('a | foo', 'b') }}{% endfor %}",
        ] {
            assert!(find_names(source).is_empty(), "{source}");
        }
    }

    fn render_error(source: &str) -> String {
        render(source, r#"{"question": "?"}"#).unwrap_err().to_string()
    }
}
