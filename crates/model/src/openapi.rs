//! Schemas, for OpenAPI, of the types that are written as text: ids, names, digests. All other schemas are derived.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

/// The schema of a text that matches a pattern.
pub(crate) fn text(description: &str, pattern: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String);
    RefOr::T(Schema::Object(text.description(Some(description)).pattern(Some(pattern)).build()))
}

/// Gives a type the schema of a text.
macro_rules! text_schema {
    ($name:ident, $description:expr, $pattern:expr) => {
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                crate::openapi::text($description, $pattern)
            }
        }
        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                std::borrow::Cow::Borrowed(stringify!($name))
            }
        }
    };
}
pub(crate) use text_schema;

#[cfg(test)]
mod tests {
    use crate::{Digest, Id as _, JobId};
    use utoipa::PartialSchema as _;

    #[test]
    fn texts_have_the_pattern_that_they_are_read_by() {
        let json = |schema| serde_json::to_value::<super::RefOr<super::Schema>>(schema).unwrap();
        assert_eq!(json(JobId::schema())["pattern"], "^job_[0-7][0-9a-hjkmnp-tv-z]{25}$");
        assert_eq!(JobId::from_bits(0).to_string().len(), "job_".len() + 26);
        assert_eq!(json(Digest::schema())["pattern"], "^sha256:[0-9a-f]{64}$");
    }
}
