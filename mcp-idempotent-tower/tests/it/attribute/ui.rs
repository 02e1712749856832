//! What the compiler says: one case per message, named after the mistake.

#[test]
fn wrong_uses_are_explained_and_right_ones_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
