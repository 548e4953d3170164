#!/usr/bin/env bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT: verify one instance.
# RESULTS_FILE gets the verdict and, for sat, the witness; a JSON record goes to RESULTS_FILE.json.
# TIMEOUT is in seconds and may be fractional. Exit code: that of bnn-vnnlib (0 for every verdict).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/instance.sh"
require_version "${1-}"
if (($# != 6)); then
    complain "usage: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT"
    exit 2
fi
results=$5
timeout=$6

rm -f -- "$results" "$results.json" # nothing of an earlier run may pass for this one's result
if ! { find_tool && find_network "$3" && find_file "$4"; }; then
    echo error >"$results"
    exit 2
fi
exec "$tool" verify "$file" --network "$network" --timeout "$timeout" --results-file "$results"
