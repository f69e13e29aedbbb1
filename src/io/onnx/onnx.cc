#include "io/onnx/onnx.h"

#include <bit>
#include <utility>

#include "io/file/printable.h"

namespace celer {
namespace {

// Graphs in attributes of nodes of graphs, optionals of sequences of optionals: deeper than any exporter
// goes.
constexpr int kMaxDepth = 32;

using Bytes = std::span<const std::byte>;

// One function per message. The field numbers are those of onnx.proto; what inference does not need is
// passed over, as protobuf demands of fields one does not know.
class OnnxParser {
 public:
  OnnxParser(std::string source, const std::byte* begin) : source_(std::move(source)), begin_(begin) {}

  Status Model(Bytes bytes, OnnxModel* out) {
    bool has_graph = false;
    CELER_RETURN_IF_ERROR(Each(bytes, "ModelProto", [&](const WireField& f) -> Status {
      switch (f.number) {
        case 1:
          return Int(f, "ir_version", &out->ir_version);
        case 2:
          return Text(f, "producer_name", &out->producer);
        case 7:
          if (std::exchange(has_graph, true)) return Broken(f, "a second graph");
          return Message(f, "graph", [&](Bytes b) { return Graph(b, 0, &out->graph); });
        case 8:
          return Opset(f, &out->opsets);
        case 25:
          return Message(f, "functions",
                         [&](Bytes b) { return Function(b, &out->functions.emplace_back()); });
        default:
          return {};
      }
    }));
    if (!has_graph)
      return Error::Corrupt(source_, ": holds no graph; is it an ONNX model and did its download end?");
    return {};
  }

  Status Tensor(Bytes bytes, OnnxTensor* out) {
    return Each(bytes, "TensorProto", [&](const WireField& f) -> Status {
      switch (f.number) {
        case 1:
          return Ints(f, "dims", &out->dims);
        case 2: {
          int64_t type = 0;
          CELER_RETURN_IF_ERROR(Int(f, "data_type", &type));
          out->data_type = static_cast<int32_t>(type);
          return {};
        }
        case 3:
          return Error::Unsupported(source_, ": a tensor in segments; store it whole");
        case 4:
        case 5:
        case 6:
        case 7:
        case 10:
        case 11:
          out->typed.push_back(f);
          return {};
        case 8:
          return Text(f, "name", &out->name);
        case 9:
          if (f.kind != WireField::Kind::kBytes) return Broken(f, "raw_data");
          out->raw = f.bytes;
          return {};
        case 13:
          return Message(f, "external_data", [&](Bytes b) { return ExternalEntry(b, out); });
        case 14: {
          int64_t location = 0;
          CELER_RETURN_IF_ERROR(Int(f, "data_location", &location));
          out->external = location == 1;
          return {};
        }
        default:
          return {};
      }
    });
  }

  Status Sequence(Bytes bytes, int depth, OnnxSequence* out) {
    if (depth > kMaxDepth) return TooDeep();
    return Each(bytes, "SequenceProto", [&](const WireField& f) -> Status {
      if (f.number == 3)
        return Message(f, "tensor_values", [&](Bytes b) { return Tensor(b, &out->tensors.emplace_back()); });
      if (f.number >= 4 && f.number <= 7)
        return Error::Unsupported(source_, ": a sequence of something else than tensors");
      return {};
    });
  }

  Status Optional(Bytes bytes, OnnxSequence* out, bool* is_sequence) {
    out->present = false;
    *is_sequence = false;
    return Each(bytes, "OptionalProto", [&](const WireField& f) -> Status {
      if (f.number == 2) *is_sequence = f.value == 3;
      if (f.number == 3) {
        out->present = true;
        return Message(f, "tensor_value", [&](Bytes b) { return Tensor(b, &out->tensors.emplace_back()); });
      }
      if (f.number == 5) {
        out->present = true;
        return Message(f, "sequence_value", [&](Bytes b) { return Sequence(b, 1, out); });
      }
      return {};
    });
  }

 private:
  template <class Fn>
  Status Each(Bytes bytes, const char* message, const Fn& fn) {
    for (WireReader reader(bytes); !reader.done();) {
      const auto field = reader.Next();
      if (!field)
        return Error::Corrupt(source_, ": broken protobuf in a ", message, " at byte ", bytes.data() - begin_,
                              "; is it an ONNX model and did its download end?");
      CELER_RETURN_IF_ERROR(fn(*field));
    }
    return {};
  }

  template <class Fn>
  Status Message(const WireField& field, const char* name, const Fn& parse) {
    if (field.kind != WireField::Kind::kBytes) return Broken(field, name);
    return parse(field.bytes);
  }

  Error Broken(const WireField& field, const char* name) const {
    return Error::Corrupt(source_, ": field ", field.number, " (", name, ") is not stored as ONNX says");
  }
  Error TooDeep() const { return Error::Corrupt(source_, ": messages nest more than ", kMaxDepth, " deep"); }

  Status Int(const WireField& field, const char* name, int64_t* out) {
    if (field.kind != WireField::Kind::kVarint) return Broken(field, name);
    *out = static_cast<int64_t>(field.value);
    return {};
  }
  Status Text(const WireField& field, const char* name, std::string_view* out) {
    if (field.kind != WireField::Kind::kBytes) return Broken(field, name);
    *out = field.text();
    return {};
  }
  Status Texts(const WireField& field, const char* name, std::vector<std::string_view>* out) {
    return Text(field, name, &out->emplace_back());
  }
  // Repeated numbers are one field each, or packed into one field.
  Status Ints(const WireField& field, const char* name, std::vector<int64_t>* out) {
    if (field.kind == WireField::Kind::kVarint) {
      out->push_back(static_cast<int64_t>(field.value));
      return {};
    }
    if (field.kind != WireField::Kind::kBytes) return Broken(field, name);
    for (WireReader reader(field.bytes); !reader.done();) {
      const auto value = reader.Varint();
      if (!value) return Broken(field, name);
      out->push_back(static_cast<int64_t>(*value));
    }
    return {};
  }
  Status Floats(const WireField& field, const char* name, std::vector<float>* out) {
    if (field.kind == WireField::Kind::kFixed32) {
      out->push_back(std::bit_cast<float>(static_cast<uint32_t>(field.value)));
      return {};
    }
    if (field.kind != WireField::Kind::kBytes || field.bytes.size() % 4 != 0) return Broken(field, name);
    for (WireReader reader(field.bytes); !reader.done();) out->push_back(*reader.Fixed<float>());
    return {};
  }

  Status Opset(const WireField& field, std::vector<OnnxOpset>* out) {
    return Message(field, "opset_import", [&](Bytes bytes) {
      OnnxOpset& opset = out->emplace_back();
      return Each(bytes, "OperatorSetIdProto", [&](const WireField& f) -> Status {
        if (f.number == 1) return Text(f, "domain", &opset.domain);
        if (f.number == 2) return Int(f, "version", &opset.version);
        return {};
      });
    });
  }

  Status ExternalEntry(Bytes bytes, OnnxTensor* out) {
    std::string_view key, value;
    CELER_RETURN_IF_ERROR(Each(bytes, "StringStringEntryProto", [&](const WireField& f) -> Status {
      if (f.number == 1) return Text(f, "key", &key);
      if (f.number == 2) return Text(f, "value", &value);
      return {};
    }));
    if (key == "location") out->location = value;
    if (key != "offset" && key != "length") return {};
    uint64_t number = 0;
    bool digits = !value.empty() && value.size() <= 18;
    for (const char c : value) {
      digits = digits && c >= '0' && c <= '9';
      number = number * 10 + static_cast<uint64_t>(c - '0');
    }
    if (!digits)
      return Error::Corrupt(source_, ": tensor '", Printable(out->name), "': external ", key, " '",
                            Printable(value), "' is not a number");
    if (key == "offset") out->offset = number;
    if (key == "length") out->length = number;
    return {};
  }

  Status Type(Bytes bytes, int depth, OnnxType* out) {
    if (depth > kMaxDepth) return TooDeep();
    return Each(bytes, "TypeProto", [&](const WireField& f) -> Status {
      switch (f.number) {
        case 1:
        case 8:
          out->kind = f.number == 1 ? OnnxType::Kind::kTensor : OnnxType::Kind::kSparse;
          return Message(f, "tensor_type", [&](Bytes b) { return TensorType(b, out); });
        case 4:
        case 9:
          out->kind = f.number == 4 ? OnnxType::Kind::kSequence : OnnxType::Kind::kOptional;
          return Message(f, "elem_type", [&](Bytes b) {
            return Each(b, "TypeProto.Sequence", [&](const WireField& g) -> Status {
              if (g.number != 1) return {};
              out->element.assign(1, {});
              return Message(g, "elem_type", [&](Bytes c) { return Type(c, depth + 1, &out->element[0]); });
            });
          });
        case 5:
          out->kind = OnnxType::Kind::kMap;
          return {};
        default:
          return {};
      }
    });
  }

  Status TensorType(Bytes bytes, OnnxType* out) {
    return Each(bytes, "TypeProto.Tensor", [&](const WireField& f) -> Status {
      if (f.number == 1) {
        int64_t type = 0;
        CELER_RETURN_IF_ERROR(Int(f, "elem_type", &type));
        out->data_type = static_cast<int32_t>(type);
        return {};
      }
      if (f.number != 2) return {};
      out->has_shape = true;
      return Message(f, "shape", [&](Bytes b) {
        return Each(b, "TensorShapeProto", [&](const WireField& g) -> Status {
          if (g.number != 1) return {};
          return Message(g, "dim", [&](Bytes c) {
            OnnxType::Dim& dim = out->dims.emplace_back();
            return Each(c, "Dimension", [&](const WireField& h) -> Status {
              if (h.number == 1) return Int(h, "dim_value", &dim.value);
              if (h.number == 2) return Text(h, "dim_param", &dim.symbol);
              return {};
            });
          });
        });
      });
    });
  }

  Status Value(Bytes bytes, OnnxValue* out) {
    return Each(bytes, "ValueInfoProto", [&](const WireField& f) -> Status {
      if (f.number == 1) return Text(f, "name", &out->name);
      if (f.number == 2) return Message(f, "type", [&](Bytes b) { return Type(b, 0, &out->type); });
      return {};
    });
  }

  Status Attribute(Bytes bytes, int depth, OnnxAttribute* out) {
    int64_t type = 0;
    bool f_given = false, i_given = false, s_given = false;
    CELER_RETURN_IF_ERROR(Each(bytes, "AttributeProto", [&](const WireField& f) -> Status {
      switch (f.number) {
        case 1:
          return Text(f, "name", &out->name);
        case 2:
          if (f.kind != WireField::Kind::kFixed32) return Broken(f, "f");
          out->f = std::bit_cast<float>(static_cast<uint32_t>(f.value));
          f_given = true;
          return {};
        case 3:
          i_given = true;
          return Int(f, "i", &out->i);
        case 4:
          s_given = true;
          return Text(f, "s", &out->s);
        case 5:
        case 10:
          return Message(f, "t", [&](Bytes b) { return Tensor(b, &out->tensors.emplace_back()); });
        case 6:
        case 11:
          return Message(f, "g", [&](Bytes b) { return Graph(b, depth + 1, &out->graphs.emplace_back()); });
        case 7:
          return Floats(f, "floats", &out->floats);
        case 8:
          return Ints(f, "ints", &out->ints);
        case 9:
          return Texts(f, "strings", &out->strings);
        case 20:
          return Int(f, "type", &type);
        case 21:
          return Text(f, "ref_attr_name", &out->reference);
        default:
          return {};
      }
    }));
    using T = OnnxAttribute::Type;
    out->type = static_cast<T>(type);
    if (type != 0) return {};
    // Files of the first version leave the type out.
    out->type = f_given                 ? T::kFloat
                : i_given               ? T::kInt
                : s_given               ? T::kString
                : !out->tensors.empty() ? T::kTensor
                : !out->graphs.empty()  ? T::kGraph
                : !out->floats.empty()  ? T::kFloats
                : !out->ints.empty()    ? T::kInts
                : !out->strings.empty() ? T::kStrings
                                        : T::kUndefined;
    return {};
  }

  Status Node(Bytes bytes, int depth, OnnxNode* out) {
    return Each(bytes, "NodeProto", [&](const WireField& f) -> Status {
      switch (f.number) {
        case 1:
          return Texts(f, "input", &out->inputs);
        case 2:
          return Texts(f, "output", &out->outputs);
        case 3:
          return Text(f, "name", &out->name);
        case 4:
          return Text(f, "op_type", &out->op);
        case 5:
          return Message(f, "attribute",
                         [&](Bytes b) { return Attribute(b, depth, &out->attributes.emplace_back()); });
        case 7:
          return Text(f, "domain", &out->domain);
        default:
          return {};
      }
    });
  }

  Status Graph(Bytes bytes, int depth, OnnxGraph* out) {
    if (depth > kMaxDepth) return TooDeep();
    return Each(bytes, "GraphProto", [&](const WireField& f) -> Status {
      switch (f.number) {
        case 1:
          return Message(f, "node", [&](Bytes b) { return Node(b, depth, &out->nodes.emplace_back()); });
        case 2:
          return Text(f, "name", &out->name);
        case 5:
          return Message(f, "initializer",
                         [&](Bytes b) { return Tensor(b, &out->initializers.emplace_back()); });
        case 11:
          return Message(f, "input", [&](Bytes b) { return Value(b, &out->inputs.emplace_back()); });
        case 12:
          return Message(f, "output", [&](Bytes b) { return Value(b, &out->outputs.emplace_back()); });
        case 13:
          return Message(f, "value_info", [&](Bytes b) { return Value(b, &out->values.emplace_back()); });
        case 15:
          ++out->sparse_initializers;
          return {};
        default:
          return {};
      }
    });
  }

  Status Function(Bytes bytes, OnnxFunction* out) {
    return Each(bytes, "FunctionProto", [&](const WireField& f) -> Status {
      switch (f.number) {
        case 1:
          return Text(f, "name", &out->name);
        case 4:
          return Texts(f, "input", &out->inputs);
        case 5:
          return Texts(f, "output", &out->outputs);
        case 6:
          return Texts(f, "attribute", &out->attributes);
        case 7:
          return Message(f, "node", [&](Bytes b) { return Node(b, 1, &out->nodes.emplace_back()); });
        case 9:
          return Opset(f, &out->opsets);
        case 10:
          return Text(f, "domain", &out->domain);
        case 11:
          return Message(f, "attribute_proto",
                         [&](Bytes b) { return Attribute(b, 1, &out->defaults.emplace_back()); });
        default:
          return {};
      }
    });
  }

  std::string source_;
  const std::byte* begin_;
};

}  // namespace

Result<OnnxFile> OnnxFile::Open(const std::filesystem::path& path) {
  CELER_ASSIGN(MappedFile file, MappedFile::Open(path));
  CELER_ASSIGN(OnnxFile out, FromBytes(file.bytes(), path.string()));
  out.file_ = std::move(file);
  return out;
}

Result<OnnxFile> OnnxFile::FromBytes(Bytes bytes, std::string source) {
  OnnxFile out;
  out.source_ = std::move(source);
  out.file_bytes_ = static_cast<int64_t>(bytes.size());
  out.model_ = std::make_unique<OnnxModel>();
  CELER_RETURN_IF_ERROR(OnnxParser(out.source_, bytes.data()).Model(bytes, out.model_.get()));
  return out;
}

Result<OnnxTensor> ParseOnnxTensor(Bytes bytes, const std::string& source) {
  OnnxTensor out;
  CELER_RETURN_IF_ERROR(OnnxParser(source, bytes.data()).Tensor(bytes, &out));
  return out;
}

Result<OnnxSequence> ParseOnnxSequence(Bytes bytes, const std::string& source) {
  OnnxSequence out;
  CELER_RETURN_IF_ERROR(OnnxParser(source, bytes.data()).Sequence(bytes, 0, &out));
  return out;
}

Result<OnnxSequence> ParseOnnxOptional(Bytes bytes, const std::string& source, bool* is_sequence) {
  OnnxSequence out;
  CELER_RETURN_IF_ERROR(OnnxParser(source, bytes.data()).Optional(bytes, &out, is_sequence));
  return out;
}

}  // namespace celer
