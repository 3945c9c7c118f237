//! `model.outputs`: which outputs of a model are asked for, and whether it has them.

use super::expect::{Expect, OpenError};

/// The setting that names them.
const KEY: &str = "model.outputs";

/// Outputs beside the dense vector, which always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// A weight for each token that the text has.
    pub sparse: bool,
    /// A vector for each token but the first.
    pub multi: bool,
}

impl Outputs {
    /// Reads the setting; order and repetition do not matter.
    ///
    /// # Errors
    /// [`OpenError::Setting`]: a name that nobody knows, or `dense` is not among them.
    pub fn read(setting: &[String]) -> Result<Self, OpenError> {
        let refuse = |what: &str| {
            Err(OpenError::Setting { key: KEY, value: format!("{setting:?}"), what: what.into() })
        };
        let has = |name: &str| setting.iter().any(|output| output == name);
        if setting.iter().any(|output| !["dense", "sparse", "multi"].contains(&output.as_str())) {
            return refuse("expected some of \"dense\", \"sparse\" and \"multi\"");
        }
        let outputs = Self { sparse: has("sparse"), multi: has("multi") };
        if !has("dense") {
            let names = outputs.names();
            return refuse(&format!("the dense vector is always stored; set model.outputs = {names:?}"));
        }
        Ok(outputs)
    }

    /// Reads the setting, for this model.
    ///
    /// # Errors
    /// As [`Outputs::read`], or the model has no such output.
    pub fn of(setting: &[String], expect: &Expect) -> Result<Self, OpenError> {
        let outputs = Self::read(setting)?;
        let has = Self { sparse: expect.sparse_head.is_some(), multi: expect.multi_head.is_some() };
        outputs.within(has, setting, &expect.name)?;
        Ok(outputs)
    }

    /// Refuses what a model called `name`, which has only the outputs of `has`, cannot give.
    ///
    /// # Errors
    /// It asks for more.
    pub fn within(self, has: Self, setting: &[String], name: &str) -> Result<(), OpenError> {
        let wanting = match (self.sparse && !has.sparse, self.multi && !has.multi) {
            (false, false) => return Ok(()),
            (true, true) => "sparse or multi",
            (true, false) => "sparse",
            (false, true) => "multi",
        };
        let less = Self { sparse: self.sparse && has.sparse, multi: self.multi && has.multi }.names();
        let what = format!(
            "{name} has no {wanting} output; set model.outputs = {less:?}, or model.name = \"bge-m3\""
        );
        Err(OpenError::Setting { key: KEY, value: format!("{setting:?}"), what })
    }

    /// Their names in the order that identities have.
    pub fn names(self) -> Vec<String> {
        let names = [("dense", true), ("sparse", self.sparse), ("multi", self.multi)];
        names.into_iter().filter(|(_, asked)| *asked).map(|(name, _)| name.into()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn order_and_repetition_do_not_matter() {
        let all = Outputs { sparse: true, multi: true };
        assert_eq!(Outputs::read(&list(&["multi", "dense", "sparse", "multi"])).unwrap(), all);
        assert_eq!(all.names(), ["dense", "sparse", "multi"]);
        assert_eq!(Outputs::read(&list(&["dense"])).unwrap().names(), ["dense"]);
        assert_eq!(Outputs::read(&list(&["multi", "dense"])).unwrap().names(), ["dense", "multi"]);
    }

    #[test]
    fn what_is_refused_says_what_to_set() {
        let said = |names: &[&str]| Outputs::read(&list(names)).unwrap_err().to_string();
        assert!(said(&["sparse"]).ends_with("set model.outputs = [\"dense\", \"sparse\"]"));
        assert!(
            said(&["dense", "colbert"])
                .contains("model.outputs = [\"dense\", \"colbert\"]: expected some of")
        );
        let asked = list(&["dense", "sparse", "multi"]);
        let refused =
            |has| Outputs { sparse: true, multi: true }.within(has, &asked, "m").unwrap_err().to_string();
        let none = refused(Outputs::default());
        assert!(
            none.contains("m has no sparse or multi output; set model.outputs = [\"dense\"], or"),
            "{none}"
        );
        let sparse = refused(Outputs { sparse: true, multi: false });
        assert!(
            sparse.contains("m has no multi output; set model.outputs = [\"dense\", \"sparse\"]"),
            "{sparse}"
        );
    }
}
