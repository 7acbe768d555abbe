from training.embedded_pair.quality import scorecard

REPORT = {
    "items_per_task": 7,
    "models": {
        "large": {"exact_match": {"sort": 0.9}, "rouge1": {"sort": 0.95}, "mean_exact_match": 0.9, "mean_rouge1": 0.95},
        "small": {"exact_match": {"sort": 0.4}, "rouge1": {"sort": 0.6}, "mean_exact_match": 0.4, "mean_rouge1": 0.6},
    },
    "drafting": {
        "acceptance_rate": 0.8,
        "content_acceptance_rate": 0.7,
        "auc": 0.95,
        "auc_content": 0.85,
        "tokens_per_round": 3.5,
        "num_drafts": 4,
        "exit_agreement_by_layer": [0.5, 1.0],
    },
    "cost": {
        "large": {"decode_ms": 4.0},
        "small": {"decode_ms": 1.0},
        "num_parameters_ratio": 19.0,
        "decode_ms_ratio": 4.0,
    },
}


def test_the_scorecard_shows_both_models_and_what_drafting_gives():
    lines = scorecard(REPORT).splitlines()
    assert lines[0].startswith("7 test items a task")
    assert lines[2].split() == ["sort", "0.900", "0.400", "0.950", "0.600"]
    assert lines[3].split() == ["mean", "0.900", "0.400", "0.950", "0.600"]
    assert "0.800 of all tokens, 0.700 of content tokens" in lines[5]
    assert "19.0 to 1 by parameters, 4.0 to 1 measured (4.00 and 1.00 ms a token)" in lines[-1]
