//! The parser's own complaints in plain words.
//!
//! The trap: the words of saphyr's errors are not promised, so an unknown one is passed on as it is.

/// What is wrong, and how to mend it, for one complaint of the parser.
pub(crate) fn explain(complaint: &str) -> (String, Option<String>) {
    let (message, mend) = if complaint.contains("found unknown anchor") {
        (
            "this alias names an anchor that is not there",
            "write `&name` before the value that it repeats",
        )
    } else if complaint.contains("tab") {
        (
            "a tab stands where only spaces may",
            "indent with spaces; YAML knows no tabs there",
        )
    } else if complaint.contains("mapping values are not allowed")
        || complaint.contains("illegal placement of ':'")
    {
        (
            "a `:` stands where no key can end",
            "put text that holds `: ` in quotes, or mend the indentation of this line or the one before",
        )
    } else if complaint.contains("did not find expected key")
        || complaint.contains("simple key expect")
    {
        (
            "expected a key and a `:` here",
            "write `key: value`, indented like the keys around it",
        )
    } else if complaint.contains("did not find expected '-'")
        || complaint.contains("block sequence entries are not allowed")
    {
        (
            "a list's item and something else are mixed here",
            "begin each item with `- `, all at one indentation",
        )
    } else if complaint.contains("'-' must be followed") {
        ("expected a space after `-`", "write `- item`")
    } else if complaint.contains("':' must be followed") {
        ("expected a space after `:`", "write `key: value`")
    } else if complaint.contains("flow mapping") {
        (
            "this `{...}` is not closed, or lacks a `,`",
            "separate its keys with `,` and end it with `}`",
        )
    } else if complaint.contains("flow sequence") {
        (
            "this `[...]` is not closed, or lacks a `,`",
            "separate its items with `,` and end it with `]`",
        )
    } else if complaint.contains("misplaced bracket") {
        (
            "a bracket closes that nothing opened",
            "remove it, or put the text in quotes",
        )
    } else if complaint.contains("unexpected end of stream") {
        ("a quoted text does not end", "write its closing quote")
    } else if complaint.contains("unknown escape character") {
        (
            "this `\\` escape is not one of YAML's",
            "write `\\\\` for a backslash, or use single quotes",
        )
    } else if complaint.contains("trailing content after double-quoted") {
        (
            "something follows a closing quote",
            "put all of the value in quotes, and write `\\\"` for a quote within",
        )
    } else if complaint == "invalid indentation" || complaint.contains("flow construct") {
        // The scanner says this only within brackets.
        (
            "this line is not indented enough, or a `[...]` or `{...}` before it is not closed",
            "close it, or indent this line more",
        )
    } else if complaint.contains("indentation") || complaint.contains("wrongly indented") {
        (
            "the indentation of this line fits none of the lines above it",
            "indent it like the keys or items that it belongs to",
        )
    } else if complaint.contains("unexpected character") {
        (
            "a value cannot begin with this character",
            "put the value in quotes",
        )
    } else if complaint.contains("recursion limit") {
        (
            "the lists and mappings are nested too deeply",
            "nest them less",
        )
    } else {
        return (format!("this is not YAML: {complaint}"), None);
    };
    (message.to_owned(), Some(mend.to_owned()))
}
