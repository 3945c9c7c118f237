//! The answers of a verb that works page by page, as one.

use serde_json::{Value, json};
use uuid::Uuid;

/// See the module.
#[derive(Default)]
pub(super) struct Totals {
    /// Numbers added up, lists joined.
    pub(super) answer: Value,
}

impl Totals {
    /// Adds a page; gives the id to go on after.
    pub(super) fn add(&mut self, page: Value) -> Option<Uuid> {
        if self.answer.is_null() {
            self.answer = json!({});
        }
        let Value::Object(fields) = page else { return None };
        let mut next = None;
        for (field, value) in fields {
            if field == "next" {
                next = value.as_str().and_then(|id| id.parse().ok());
                continue;
            }
            match (&mut self.answer[&field], value) {
                (Value::Array(so_far), Value::Array(more)) => so_far.extend(more),
                (so_far @ Value::Number(_), Value::Number(more)) => {
                    *so_far = json!(so_far.as_u64().unwrap_or(0) + more.as_u64().unwrap_or(0));
                }
                (so_far, value) => *so_far = value,
            }
        }
        next
    }

    /// One number.
    pub(super) fn n(&self, field: &str) -> u64 {
        self.answer[field].as_u64().unwrap_or(0)
    }

    /// Letters that were changed, or would have been.
    pub(super) fn touched(&self) -> u64 {
        ["redriven", "superseded", "reconciled", "discarded", "purged"]
            .iter()
            .map(|field| self.n(field))
            .sum()
    }

    /// Takes a list out of the answer.
    pub(super) fn take(&mut self, field: &str) -> Vec<Value> {
        let taken = self.answer.as_object_mut().and_then(|fields| fields.remove(field));
        taken.map_or_else(Vec::new, |list| list.as_array().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_add_up_and_lists_join() {
        let mut all = Totals::default();
        assert_eq!(all.touched(), 0);
        let id = Uuid::from_u128(7);
        assert_eq!(all.add(json!({ "dry_run": false, "redriven": 2, "staying": [1], "next": id })), Some(id));
        assert_eq!(all.add(json!({ "dry_run": false, "redriven": 3, "staying": [2], "next": null })), None);
        assert_eq!(all.answer, json!({ "dry_run": false, "redriven": 5, "staying": [1, 2] }));
        assert_eq!(
            (all.touched(), all.take("staying"), all.take("none")),
            (5, vec![json!(1), json!(2)], vec![])
        );
    }
}
