#!/usr/bin/env bash
# competition.sh CATEGORY INSTANCES_CSV OUT [GRACE]: run a benchmark as the competition's runner does, with nothing but
# the three scripts. Useful to see whether a tool's scripts hold what the competition expects of them.
#
# For every line onnx,vnnlib,timeout (the first cell may be a quoted list of networks): prepare_instance.sh, at most 600 s,
# a failure skips the instance; run_instance.sh, killed GRACE (60) seconds after its time limit; then the first line of
# the results file. OUT gets results.csv (category,network,property,prepare_time,result,run_time) and the results files.
# SCRIPTS names another folder with scripts.
set -uo pipefail
if (($# < 3 || $# > 4)); then
    echo "usage: competition.sh CATEGORY INSTANCES_CSV OUT [GRACE]" >&2
    exit 2
fi
category=$1
out=$3
grace=${4-60}
scripts=${SCRIPTS-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
table=$(basename "$2")
cd "$(dirname "$2")" || exit 2 # the paths in the table are relative to it

since() { awk -v begun="$1" -v ended="$(date +%s.%N)" 'BEGIN { printf "%.6f", ended - begun }'; }

: >"$out/results.csv"
number=0
while IFS= read -r line || [[ -n "$line" ]]; do
    [[ -z "${line//[[:space:]]/}" ]] && continue
    if [[ "$line" =~ ^\"(.*)\",([^,]*),([^,]*)$ || "$line" =~ ^([^,]*),([^,]*),([^,]*)$ ]]; then
        onnx=${BASH_REMATCH[1]} vnnlib=${BASH_REMATCH[2]} limit=${BASH_REMATCH[3]//[[:space:]]/}
    else
        echo "competition.sh: cannot read the line: $line" >&2
        exit 2
    fi
    number=$((number + 1))
    results=$out/$number.txt
    rm -f "$results"
    begun=$(date +%s.%N)
    timeout -s KILL 600 bash "$scripts/prepare_instance.sh" v1 "$category" "$onnx" "$vnnlib" >"$out/$number.log" 2>&1
    prepared=$?
    prepare_time=$(since "$begun")
    result=prepare_failed run_time=0.000000
    if ((prepared == 0)); then
        begun=$(date +%s.%N)
        timeout -s KILL "$(awk -v limit="$limit" -v grace="$grace" 'BEGIN { print limit + grace }')" \
            bash "$scripts/run_instance.sh" v1 "$category" "$onnx" "$vnnlib" "$results" "$limit" >>"$out/$number.log" 2>&1
        code=$?
        run_time=$(since "$begun")
        result=run_instance_timeout
        if ((code != 137)); then # not killed
            result=error
            [[ -s "$results" ]] && IFS= read -r result <"$results"
        fi
    fi
    [[ "$onnx" == *,* ]] && onnx="\"$onnx\""
    printf '%s\n' "$category,$onnx,$vnnlib,$prepare_time,$result,$run_time" | tee -a "$out/results.csv"
done <"$table"
