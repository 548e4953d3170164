#!/usr/bin/env bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB: check that the instance can be run. No analysis happens here.
# A non-zero exit makes the competition skip the instance.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/instance.sh"
require_version "${1-}"
if (($# != 4)); then
    complain "usage: prepare_instance.sh v1 CATEGORY ONNX VNNLIB"
    exit 2
fi
find_tool
find_network "$3"
find_file "$4"
