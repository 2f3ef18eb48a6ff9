package tracing

import (
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/event"
)

// Operation is an operation on a message, after OpenTelemetry's semantic conventions for messaging.
type Operation struct {
	// Name is that of the spans: verb and template of the destination.
	Name string

	verb, template string
	kind           attribute.KeyValue
}

func operation(verb, template string, kind attribute.KeyValue) Operation {
	return Operation{verb + " " + template, verb, template, kind}
}

const (
	template    = "mcp.{partition}.{session}.{life}.{stream}"
	templateRPC = "mcp.rpc.{session}"
)

var (
	// Publish is a message on its way into the log; it ends with the acknowledgement.
	Publish = operation("publish", template, semconv.MessagingOperationTypeSend)
	// Deliver is an event on its way to one client; it ends when it is in the socket.
	Deliver = operation("deliver", template, semconv.MessagingOperationTypeProcess)
	// Resume is the read of the events that a reconnecting client missed.
	Resume = operation("resume", template, semconv.MessagingOperationTypeReceive)
	// Ingest is a message to ingest on NATS, until it is answered.
	Ingest = operation("process", "mcp.ingest.{session}.{stream}", semconv.MessagingOperationTypeProcess)
	// Ask is a request of an edge to a bridge.
	Ask = operation("send", templateRPC, semconv.MessagingOperationTypeSend)
	// Answer is a bridge's work on such a request.
	Answer = operation("process", templateRPC, semconv.MessagingOperationTypeProcess)
)

// Keys of attributes that no convention has.
const (
	// KeySession and KeyStream are the names; they are those of the fields in the log.
	KeySession = attribute.Key("rejoin.session")
	KeyStream  = attribute.Key("rejoin.stream")
	// KeyDelivery counts an event's deliveries by one edge, from 1.
	KeyDelivery = attribute.Key("rejoin.delivery")
	// KeySubscribers is how many streams of this edge an event was for when it arrived.
	KeySubscribers = attribute.Key("rejoin.subscribers")
	// KeySource is the source of the events: window or log.
	KeySource = attribute.Key("rejoin.source")
	// KeyEvents counts events.
	KeyEvents = attribute.Key("rejoin.events")
	// KeyGap is the reason of a gap.
	KeyGap = attribute.Key("rejoin.gap")
	// KeyDuplicate says that an event was in the log already.
	KeyDuplicate = attribute.Key("rejoin.duplicate")
)

// On returns the attributes of the operation on a message to a NATS subject.
func (o Operation) On(subject, session, stream string) []attribute.KeyValue {
	all := []attribute.KeyValue{
		semconv.MessagingSystemKey.String("nats"), semconv.MessagingOperationName(o.verb), o.kind,
		semconv.MessagingDestinationName(subject), semconv.MessagingDestinationTemplate(o.template), KeySession.String(session),
	}
	if stream != "" {
		all = append(all, KeyStream.String(stream))
	}
	return all
}

// OnEvent returns the attributes of the operation on an event.
func (o Operation) OnEvent(at event.Subject) []attribute.KeyValue {
	return append(o.On(at.String(), at.Session, at.Stream), semconv.MessagingDestinationPartitionID(strconv.Itoa(at.Partition)))
}

// Fail marks a span as failed. The program's log has the error: a trace has no error's text,
// as that may hold data that the receiver of traces may not see.
func Fail(span trace.Span) { span.SetStatus(codes.Error, "") }
