// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package api

import (
	"encoding/json"
	"log"
	"net/http"
	"strconv"
)

// Codes that clients see in error bodies.
const (
	CodeInvalidRequest   = "INVALID_REQUEST_BODY"
	CodeMissingQuery     = "MISSING_QUERY"
	CodeRuntime          = "RUNTIME_ERROR"
	CodeInvalidFile      = "INVALID_FILE"
	CodeInvalidContent   = "INVALID_FILE_CONTENT"
	CodeInvalidMetadata  = "INVALID_FILE_METADATA"
	CodeFileNotFound     = "FILE_NOT_FOUND"
	CodeContextNotFound  = "CONTEXT_NOT_FOUND"
	CodeCommandNotFound  = "COMMAND_NOT_FOUND"
	CodeNotFound         = "NOT_FOUND"
	CodeNotSupported     = "NOT_SUPPORTED"
	CodeUnavailable      = "SERVICE_UNAVAILABLE"
	CodeUnauthenticated  = "UNAUTHENTICATED"
	CodeAlreadyConnected = "ALREADY_CONNECTED"
	CodeTooLarge         = "REQUEST_TOO_LARGE"
)

// errorBody repeats the message as "error" for clients that look for the older member.
type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Error   string `json:"error"`
}

// WriteError answers with a JSON error body. Call it before anything else was written.
func WriteError(w http.ResponseWriter, status int, code, message string) {
	WriteJSON(w, status, errorBody{Code: code, Message: message, Error: message})
}

// WriteJSON answers with v as JSON and an exact Content-Length.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		log.Printf("event=unencodable_answer type=%T error=%q", v, err)
		http.Error(w, `{"code":"UNKNOWN","message":"the answer could not be encoded"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		// The caller hung up: there is nobody left to tell.
		return
	}
}
