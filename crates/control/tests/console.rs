//! Claims about the pages as a whole: every state has a page, foreign text stays text, nothing is inline, forms carry the
//! session's token, empty pages lead on.

mod farm;
mod pages;

use forgeyard_control::console::{assets, chain, timeline};
use forgeyard_model::principal::Role;
use forgeyard_model::{Lane, Timestamp};
use pages::{Skeleton, all_pages, empty_pages, skeleton, tags};
use proptest::prelude::*;

#[test]
fn no_page_has_inline_script_or_style_or_a_foreign_resource() {
    for (name, html) in all_pages("harmless", &farm::shell(Some(Role::Admin))) {
        for tag in tags(&html) {
            let Skeleton { name: element, attributes } = skeleton(tag);
            assert_ne!(element, "style", "{name}");
            for attribute in &attributes {
                assert_ne!(attribute, "style", "{name}: {tag}");
                assert!(!attribute.starts_with("on"), "{name}: {tag}");
            }
            if element == "script" {
                assert!(tag.contains("src=\"/assets/"), "{name}: {tag}");
            }
            if ["link", "script", "img", "iframe", "use"].contains(&element.as_str()) {
                assert!(!tag.contains("//"), "{name} loads from elsewhere: {tag}");
            }
        }
        assert!(!html.contains("<script>"), "{name}");
        assert!(!html.contains("javascript:"), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The strongest form of escaping: whatever the text, the elements and attributes of each page stay the same.
    #[test]
    fn foreign_text_never_becomes_markup(text in hostile()) {
        let shell = farm::shell(Some(Role::Admin));
        let harmless: Vec<_> = all_pages("x harmless", &shell);
        for ((name, plain), (_, foreign)) in harmless.iter().zip(all_pages(&text, &shell)) {
            let shape = |html: &str| tags(html).map(skeleton).collect::<Vec<_>>();
            prop_assert!(!foreign.contains("<script>alert"), "{}", name);
            prop_assert_eq!(shape(plain), shape(&foreign), "{} with {:?}", name, text);
        }
    }
}

/// Texts that try to break out of elements, attributes, comments and terminals.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<script>alert(1)</script>".to_owned()),
        Just("\"><img src=x onerror=alert(1)>".to_owned()),
        Just("' onmouseover='alert(1)".to_owned()),
        Just("</title></svg></style>".to_owned()),
        Just("<!--".to_owned()),
        Just("]]>&lt;&#x3c;".to_owned()),
        Just("\u{1b}]8;;javascript:alert(1)\u{7}".to_owned()),
        Just("\u{202e}\u{0}\u{fffe}".to_owned()),
        "[^/\\n\\r]{0,12}",
    ];
    prop::collection::vec(piece, 1..5).prop_map(|pieces| format!("x {} x", pieces.concat()))
}

#[test]
fn every_page_renders_for_every_state() {
    let shell = farm::shell(Some(Role::Operator));
    let count = pages::pages_of_all_states(&shell, |name, html| {
        assert!(html.starts_with("<!DOCTYPE html>"), "{name}");
        assert!(html.contains("<h1"), "{name} has a heading");
        assert!(html.ends_with("</html>"), "{name}");
    });
    assert!(count > 100, "{count} pages");
}

#[test]
fn every_posting_form_carries_the_token_of_the_session() {
    for (name, html) in all_pages("harmless", &farm::shell(Some(Role::Admin))) {
        for form in html
            .split("<form")
            .skip(1)
            .filter(|form| form.split('>').next().unwrap().contains("method=\"post\""))
        {
            let inside = form.split("</form>").next().unwrap();
            assert!(inside.contains("name=\"csrf\" value=\"c5f0a1d2e3b4\""), "{name}: {inside}");
        }
    }
}

#[test]
fn a_viewer_gets_no_form_that_changes_anything() {
    for (name, html) in all_pages("harmless", &farm::shell(Some(Role::Viewer))) {
        for tag in tags(&html).filter(|tag| tag.starts_with("form") && tag.contains("post")) {
            // Signing in and out, and the terms, are everybody's own affair.
            let own = ["\"/logout\"", "\"/login\"", "\"/terms\""].iter().any(|to| tag.contains(to));
            assert!(own, "{name}: {tag}");
        }
    }
}

#[test]
fn every_empty_state_says_what_to_do_next() {
    for (name, html) in empty_pages(&farm::shell(Some(Role::Admin))) {
        let empty =
            html.split("class=\"empty\"").nth(1).unwrap_or_else(|| panic!("{name} has no empty state"));
        let steps =
            empty.split("class=\"next-steps\"").nth(1).unwrap_or_else(|| panic!("{name} has no next step"));
        assert!(steps.contains("<pre>") || steps.contains("<a "), "{name}");
    }
}

#[test]
fn a_simulated_device_says_so_wherever_it_shows() {
    let mentions = |html: &str| html.contains("pthread-haswell");
    let mut seen = 0;
    for (name, html) in all_pages("harmless", &farm::shell(Some(Role::Admin))) {
        if mentions(&html) {
            seen += 1;
            assert!(html.contains("simulated GPU"), "{name}");
        }
    }
    assert!(seen >= 2, "{seen} pages show it");
}

#[test]
fn the_log_opens_at_the_decisive_line_without_terminal_codes() {
    let view = farm::job_view(&farm::failed(), "test/fy-solve/gpu");
    let shell = farm::shell(Some(Role::Viewer));
    let html = forgeyard_control::console::job::job(
        &shell,
        &view,
        &farm::why(&view),
        &farm::log(true),
        &farm::names(),
    );
    let html = html.into_string();
    assert!(html.contains("data-decisive=\"412\""));
    assert!(html.contains("<div class=\"ll decisive\" id=\"L412\">"));
    assert!(html.contains("href=\"#L412\""));
    assert!(!html.contains('\u{1b}'));
    assert!(html.contains("compiling kernels 100%") && !html.contains("compiling kernels  50%"));
}

#[test]
fn overlapping_leases_count_once_and_time_ends_with_the_last_lease() {
    let mut view = farm::succeeded();
    let at =
        |seconds: i64| Timestamp::from_micros(view.pipeline.created_at.as_micros() + seconds * 1_000_000);
    let (a, b, c) = (at(10), at(30), at(500));
    let spans = [(a, at(40)), (b, at(60)), (at(490), c)];
    for (lease, (from, to)) in view.leases.iter_mut().zip(spans) {
        lease.claimed_at = from;
        lease.ended_at = Some(to);
    }
    view.leases.truncate(3);
    let time = timeline::leased_time(&view, farm::NOW);
    assert_eq!((time.total.as_secs(), time.leased.as_secs(), time.parts.len()), (500, 60, 2));
}

#[test]
fn the_chain_of_a_diamond_is_drawn_like_this() {
    let view = farm::running();
    let graph = chain::graph(&view);
    let drawn = chain::picture(&graph, &chain::layout(&graph), farm::NOW).into_string();
    insta::assert_snapshot!(drawn.replace("><", ">\n<"));
}

#[test]
fn what_is_not_promotable_says_why_in_the_chain_and_on_the_page() {
    let shell = farm::shell(Some(Role::Viewer));
    for lane in [Lane::ForkPr, Lane::SameRepoPr] {
        let row = farm::pipeline(5, 900, lane, forgeyard_model::pipeline::PipelineState::Succeeded);
        let view = farm::diamond(row, farm::Stop::Done);
        let html =
            forgeyard_control::console::pipeline::pipeline(&shell, &view, &farm::names()).into_string();
        assert!(html.contains("Why it is not promoted") && html.contains("promotion.lane"));
        assert!(html.contains(">not promoted<"));
    }
}

#[test]
fn assets_are_found_by_the_address_that_pages_use_and_keep_the_policy() {
    let (_, html) = all_pages("harmless", &farm::shell(None)).remove(0);
    for asset in assets::all() {
        assert!(html.contains(&asset.path), "{} is referred to", asset.path);
        assert_eq!(assets::find(&asset.path).unwrap().body, asset.body);
        let text = std::str::from_utf8(asset.body).unwrap();
        for forbidden in [
            "eval(",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "new Function",
            "@import",
            "url(",
        ] {
            assert!(!text.contains(forbidden), "{} uses {forbidden}", asset.path);
        }
    }
    assert!(assets::find("/assets/../Cargo.toml").is_none());
}
