#include "server/api/read_adapters.h"

#include <algorithm>
#include <cmath>

#include "server/api/params.h"

namespace celer::server {
namespace {

constexpr size_t kMostAdapters = 64;  // of a request

Refusal OnlyFields(const Json& object, const std::string& where,
                   std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items())
    if (!value.is_null() && std::find(known.begin(), known.end(), name) == known.end())
      return NotSupported(where.empty() ? name : where + "." + name, "");
  return {};
}

Refusal ReadString(const Json& body, const char* name, std::string* out) {
  const Json* const value = Field(body, name);
  if (!value || !value->is_string() || value->get_ref<const std::string&>().empty())
    return Bad(name, value ? *value : Json(), "a string that is not empty");
  *out = value->get<std::string>();
  return {};
}

Refusal ReadScale(const Json& value, const std::string& where, float* out) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(std::abs(number) <= 1e6)) return Bad(where, value, "a number from -1000000 to 1000000");
  *out = static_cast<float>(number);
  return {};
}

}  // namespace

Refusal ReadScales(const Json& value, const char* param, std::vector<AdapterChoice>* out) {
  if (!value.is_array() || value.size() > kMostAdapters)
    return Bad(param, value, "an array of at most 64 objects with id and scale");
  out->clear();
  for (const Json& one : value) {
    const std::string where = param;
    if (!one.is_object()) return Bad(where, one, "objects with id and scale");
    if (auto refusal = OnlyFields(one, where, {"id", "name", "scale"})) return refusal;
    AdapterChoice choice;
    const Json *id = Field(one, "id"), *name = Field(one, "name"), *scale = Field(one, "scale");
    if ((id != nullptr) == (name != nullptr))
      return ApiError{.message = where + " needs an id or a name in each of its objects", .param = param};
    if (id && (!id->is_number_integer() || id->get<double>() < 0 || id->get<double>() > 1e15))
      return Bad(where + ".id", *id, "a number that /lora-adapters lists");
    if (id) choice.id = id->get<int64_t>();
    if (name) {
      if (auto refusal = ReadString(one, "name", &choice.name)) return refusal;
    }
    if (scale)
      if (auto refusal = ReadScale(*scale, where + ".scale", &choice.scale)) return refusal;
    out->push_back(std::move(choice));
  }
  return {};
}

Refusal ReadLoad(const Json& body, AdapterOrder* out) {
  if (auto refusal =
          OnlyFields(body, "", {"lora_name", "lora_path", "load_inplace", "base_model_name", "scale"}))
    return refusal;
  std::string path;
  if (!Field(body, "lora_name") || !Field(body, "lora_path"))
    return ApiError{.message = "Both 'lora_name' and 'lora_path' must be provided.",
                    .param = Field(body, "lora_name") ? "lora_path" : "lora_name"};
  if (auto refusal = ReadString(body, "lora_name", &out->spec.name)) return refusal;
  if (auto refusal = ReadString(body, "lora_path", &path)) return refusal;
  if (path.find('\0') != std::string::npos) return Bad("lora_path", path, "a path");
  out->spec.path = path;
  if (const Json* scale = Field(body, "scale"))
    if (auto refusal = ReadScale(*scale, "scale", &out->spec.scale)) return refusal;
  if (const Json* replace = Field(body, "load_inplace")) {
    if (!replace->is_boolean()) return Bad("load_inplace", *replace, "true or false");
    out->replace = replace->get<bool>();
  }
  return {};
}

Refusal ReadUnload(const Json& body, std::string* name) {
  if (auto refusal = OnlyFields(body, "", {"lora_name", "lora_int_id"})) return refusal;
  if (!Field(body, "lora_name"))
    return ApiError{.message = "'lora_name' needs to be provided to unload a LoRA adapter.",
                    .param = "lora_name"};
  return ReadString(body, "lora_name", name);
}

}  // namespace celer::server
