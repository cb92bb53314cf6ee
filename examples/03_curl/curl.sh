#!/usr/bin/env bash
# curl.sh RECORDING [URL] [SPEAKING_MODEL]: writes speech.mp3 into the current folder.
set -euo pipefail
file="$1" url="${2:-http://127.0.0.1:8000}" model="${3:-kokoro}"
ask=(curl --fail-with-body --silent --show-error)

"${ask[@]}" "$url/v1/models"
echo

"${ask[@]}" -F "file=@$file" -F model=whisper_tiny_en -F response_format=srt "$url/v1/audio/transcriptions"

"${ask[@]}" -H 'content-type: application/json' -o speech.mp3 "$url/v1/audio/speech" \
  -d "{\"model\": \"$model\", \"voice\": \"default\", \"input\": \"Hello there.\", \"response_format\": \"mp3\"}"

"${ask[@]}" "$url/metrics" | grep ^toolkit_requests_total
