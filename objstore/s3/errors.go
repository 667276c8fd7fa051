package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// errAnswer marks an answer that is not what S3 promises: a header is missing
// or wrong, the body has another length than announced. It is retried: something on
// the way may have garbled it.
var errAnswer = errors.New("malformed answer")

// errRequestTimeout marks an attempt that took longer than Options.RequestTimeout.
// It is not context.DeadlineExceeded: the caller's context has not ended.
var errRequestTimeout = errors.New("request took too long")

// errNoUpload marks that a multipart upload does not exist: it was completed
// by an earlier attempt, or aborted.
var errNoUpload = errors.New("no such upload")

// failure is a request that failed, translated from the SDK's error.
type failure struct {
	err   error // for the caller; wraps one of objstore's errors where one fits
	retry bool  // whether the same request may do better later
}

// request is what translating an error needs to know about what was asked.
type request struct {
	verb        string // "put", as in "put NAME: ..."
	name        string // object name, or prefix; "" for the bucket itself
	conditional bool   // a Put with a condition
}

func (r request) String() string {
	if r.name == "" {
		return r.verb
	}
	return r.verb + " " + r.name
}

// translate turns an error of the SDK, or of reading an answer's body, into one of
// the store's.
func (r request) translate(err error) failure {
	var answer *smithyhttp.ResponseError
	var transport *smithyhttp.RequestSendError
	var garbled *smithy.DeserializationError
	var certificate *tls.CertificateVerificationError
	var network net.Error
	switch {
	case errors.As(err, &answer) && answer.Response != nil && answer.HTTPStatusCode() >= 300:
		return r.translateAnswer(answer)
	case errors.Is(err, errNoCredentials):
		return failure{fmt.Errorf("%w: %w", objstore.ErrCredentials, rootOf(err)), false}
	case errors.Is(err, errCredentialsRefresh):
		return failure{fmt.Errorf("%w: %w", objstore.ErrCredentials, rootOf(err)), true}
	case errors.As(err, &certificate):
		return failure{fmt.Errorf("%w: %w", objstore.ErrUnavailable, certificate), false}
	case errors.Is(err, errIdle), errors.Is(err, errAnswer), errors.Is(err, errRequestTimeout),
		errors.Is(err, errNotAll),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.As(err, &transport), errors.As(err, &garbled), errors.As(err, &network):
		return failure{rootOf(err), true}
	default:
		return failure{rootOf(err), false} // refused by the SDK before it was sent
	}
}

// translateAnswer judges an error that the server sent, by its code first: one that comes
// inside an answer of status 200 has no status of its own, and the SDK
// then calls it 500.
func (r request) translateAnswer(answer *smithyhttp.ResponseError) failure {
	code, detail := describe(answer)
	if f, ok := r.judgeCode(code, detail); ok {
		return f
	}
	if region := answer.Response.Header.Get("x-amz-bucket-region"); region != "" {
		switch answer.HTTPStatusCode() {
		case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest:
			detail += fmt.Sprintf("; the bucket is in region %q", region)
		}
	}
	return r.judgeStatus(answer.HTTPStatusCode(), detail)
}

// judgeCode judges S3's error codes that say more than the status; false for
// others.
func (r request) judgeCode(code, detail string) (failure, bool) {
	is := func(sentinel error) (failure, bool) {
		return failure{fmt.Errorf("%w: %s", sentinel, detail), false}, true
	}
	switch code {
	case "PreconditionFailed":
		return is(objstore.ErrPrecondition)
	case "ConditionalRequestConflict", "OperationAborted":
		if r.conditional {
			return is(objstore.ErrConflict)
		}
		return failure{errors.New(detail), true}, true
	case "NoSuchBucket":
		return is(objstore.ErrNoBucket)
	case "NoSuchUpload":
		return is(errNoUpload)
	case "InvalidRange":
		return is(objstore.ErrRange)
	case "AccessDenied":
		return is(objstore.ErrDenied)
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId",
		"SignatureDoesNotMatch", "InvalidClientTokenId", "UnrecognizedClientException":
		return is(objstore.ErrCredentials)
	case "QuotaExceeded", "XMinioStorageFull": // of servers other than AWS's
		return is(objstore.ErrFull)
	case "RequestTimeTooSkewed", // the SDK learns the skew from this answer
		"InternalError", "SlowDown", "ServiceUnavailable",
		// The body was damaged or cut on its way:
		"RequestTimeout", "BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "IncompleteBody":
		return failure{errors.New(detail), true}, true
	}
	return failure{}, false
}

// judgeStatus judges an answer whose code says nothing, or that has none.
func (r request) judgeStatus(status int, detail string) failure {
	is := func(sentinel error) failure { return failure{fmt.Errorf("%w: %s", sentinel, detail), false} }
	switch status {
	case http.StatusNotModified:
		return is(objstore.ErrNotModified)
	case http.StatusNotFound:
		if r.conditional { // If-Match on a name that does not exist
			return is(objstore.ErrPrecondition)
		}
		return is(objstore.ErrNotFound)
	case http.StatusConflict:
		if r.conditional {
			return is(objstore.ErrConflict)
		}
		return failure{errors.New(detail), false}
	case http.StatusPreconditionFailed:
		return is(objstore.ErrPrecondition)
	case http.StatusRequestedRangeNotSatisfiable:
		return is(objstore.ErrRange)
	case http.StatusUnauthorized, http.StatusForbidden:
		return is(objstore.ErrDenied)
	case http.StatusInsufficientStorage:
		return is(objstore.ErrFull)
	case http.StatusNotImplemented:
		return failure{errors.New(detail), false}
	case http.StatusTooManyRequests, http.StatusRequestTimeout:
		return failure{errors.New(detail), true}
	}
	return failure{errors.New(detail), status >= 500}
}

// describe returns the server's error code and one line for people.
func describe(answer *smithyhttp.ResponseError) (code, line string) {
	line = fmt.Sprintf("status %d", answer.HTTPStatusCode())
	var api smithy.APIError
	if errors.As(answer.Err, &api) {
		code = api.ErrorCode()
		line += " " + code
		if m := api.ErrorMessage(); m != "" && m != code {
			line += ": " + m
		}
	}
	if id := answer.Response.Header.Get("x-amz-request-id"); id != "" {
		line += " (request " + id + ")"
	}
	return code, line
}

// rootOf strips the layers that the SDK puts around an error: they repeat the
// operation, and give a status of 0 to a request that got no answer.
func rootOf(err error) error {
	var operation *smithy.OperationError
	if errors.As(err, &operation) {
		err = operation.Err
	}
	var answer *smithyhttp.ResponseError
	if errors.As(err, &answer) {
		err = answer.Err
	}
	var send *smithyhttp.RequestSendError
	if errors.As(err, &send) {
		err = send.Err
	}
	return err
}

// attemptError replaces the error of an attempt that ran into its own deadline
// while the caller's context lives on.
func attemptError(caller, attempt context.Context, err error) error {
	if err != nil && caller.Err() == nil && errors.Is(context.Cause(attempt), errRequestTimeout) {
		return context.Cause(attempt)
	}
	return err
}
