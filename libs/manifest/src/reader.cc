#include "reader.h"

#include <algorithm>
#include <cmath>

#include "kern/base/assert.h"
#include "lines.h"
#include "schema_writer.h"

namespace kern::manifest {
namespace {

/// "`a`, `b`", of the fields that `take` wants.
template <class Take>
std::string key_list(std::initializer_list<Field> fields, const Take& take) {
  std::string out;
  for (const Field& field : fields)
    if (take(field)) out += fmt::format("{}`{}`", out.empty() ? "" : ", ", field.key);
  return out;
}

bool is_nullable(Need need) {
  return need == Need::nullable || need == Need::one_nullable;
}

bool is_one(const Field& field) {
  return field.need == Need::one || field.need == Need::one_nullable;
}

}  // namespace

std::string At::pointer() const {
  if (parent == nullptr) return {};
  std::string out = parent->pointer();
  out += '/';
  out += is_index ? fmt::format("{}", index) : escape_pointer(key);
  return out;
}

void Reader::wrong_type(Json json, const At& at, std::string_view expected) {
  problem(at, "expected {}, got {}", expected, json.type_name());
}

bool Reader::expect_text(Json json, const At& at, std::string_view& out) {
  if (json.type() != Json::Type::text) {
    wrong_type(json, at, "a string");
    return false;
  }
  out = json.text();
  return true;
}

void Reader::object(Json json, const At& at, std::string_view name,
                    std::initializer_list<Field> fields, const Companion* companion) {
  KERN_ASSERT(fields.size() <= 32);
  if (describing()) return schema_->object(name, fields, companion);
  if (json.type() != Json::Type::object) return wrong_type(json, at, "an object");
  uint32_t seen = 0, stands = 0;  // a null is seen, and stands for nothing
  json.each_member([&](std::string_view key, Json value) {
    uint32_t bit = 1;
    const Field* field = fields.begin();
    for (; field != fields.end() && field->key != key; ++field) bit <<= 1;
    const At here = at.member(key);
    if (field == fields.end() || version_ > field->until)
      return problem(here, "unknown key `{}`; expected one of {}", key,
                     key_list(fields, [&](const Field& one) { return version_ <= one.until; }));
    if ((seen & bit) != 0) return problem(here, "`{}` stands twice", key);
    seen |= bit;
    need_version(here, field->since, key);
    if (is_nullable(field->need) && value.type() == Json::Type::null) return;
    stands |= bit;
    field->read(value, here);
  });
  check_needs(stands, at, fields, companion);
}

void Reader::check_needs(uint32_t standing, const At& at, std::initializer_list<Field> fields,
                         const Companion* companion) {
  int ones = 0, ones_seen = 0;
  bool key = false, partner = false;
  uint32_t bit = 1;
  for (const Field& field : fields) {
    const bool stands = (standing & bit) != 0;
    if (field.need == Need::required && !stands) problem(at, "`{}` is missing", field.key);
    if (is_one(field)) {
      ++ones;
      ones_seen += static_cast<int>(stands);
    }
    if (companion != nullptr && stands) {
      key = key || field.key == companion->key;
      partner = partner || field.key == companion->first || field.key == companion->second;
    }
    bit <<= 1;
  }
  if (ones != 0 && ones_seen != 1)
    problem(at, "expected exactly one of {}, got {}", key_list(fields, is_one), ones_seen);
  else if (key && !partner)
    problem(at, "`{}` goes with `{}` or `{}` only", companion->key, companion->first,
            companion->second);
}

void Reader::check_duplicates(std::vector<std::string_view>& names, const At& at) {
  std::sort(names.begin(), names.end());
  for (size_t i = 1; i < names.size(); ++i)
    if (names[i] == names[i - 1] && (i < 2 || names[i] != names[i - 2]))
      problem(at.member(names[i]), "`{}` stands twice", names[i]);
}

void Reader::named(Json json, const At& at,
                   FunctionRef<void(std::string_view, Json, const At&)> read, EmptyName empty) {
  if (describing()) return schema_->named([&] { read("name", json, at); }, empty);
  if (json.type() != Json::Type::object) return wrong_type(json, at, "an object");
  std::vector<std::string_view> names;
  json.each_member([&](std::string_view key, Json value) {
    names.push_back(key);
    if (empty == EmptyName::refused && key.empty())
      problem(at.member(key), "expected a name, got an empty string");
    read(key, value, at.member(key));
  });
  check_duplicates(names, at);
}

bool Reader::list(Json json, const At& at, ReadValue read, size_t at_least) {
  if (describing()) {
    schema_->list([&] { read(json, at); }, at_least);
    return true;
  }
  if (json.type() != Json::Type::array) {
    wrong_type(json, at, "a list");
    return false;
  }
  size_t count = 0;
  json.each_element([&](size_t i, Json value) {
    read(value, at.element(i));
    ++count;
  });
  if (count < at_least) problem(at, "expected a list of at least {}, got {}", at_least, count);
  return true;
}

void Reader::list_of(Json json, const At& at, size_t count, ReadValue read) {
  if (describing()) return schema_->list_of(count, [&] { read(json, at); });
  const size_t problems = diagnostics_.size();
  size_t got = 0;
  const bool is_list = list(json, at, [&](Json value, const At& here) {
    if (got++ < count) read(value, here);
  });
  if (!is_list || got == count) return;
  diagnostics_.resize(problems);
  problem(at, "expected {} elements, got {}", count, got);
}

void Reader::choose(Json json, const At& at, std::string_view key, std::string_view prefix,
                    ReadValue with, ReadValue without) {
  if (describing())
    return schema_->choose(
        key, prefix, [&] { with(json, at); }, [&] { without(json, at); });
  bool chosen = false;
  if (json.type() == Json::Type::object)
    json.each_member([&](std::string_view one, Json value) {
      if (one == key && value.type() == Json::Type::text) chosen = value.text().starts_with(prefix);
    });
  (chosen ? with : without)(json, at);
}

void Reader::describe_either(ReadValue object, ReadValue other) {
  schema_->any_of([&] { object(Json(), At{}); }, [&] { other(Json(), At{}); });
}

const Constant* Reader::constant(std::string_view name) const {
  if (constants_ == nullptr) return nullptr;
  for (const Constant& constant : *constants_)
    if (constant.name == name) return &constant;
  return nullptr;
}

void Reader::integer(Json json, const At& at, int64_t min, int64_t max, int64_t& out) {
  if (describing()) return schema_->integer(min, max);
  int64_t value = 0;
  if (json.type() == Json::Type::text) {
    const Constant* named = constant(json.text());
    if (named == nullptr)
      return problem(at, "expected a number, got `{}`, which names no constant", json.text());
    if (!is_whole(*named) || std::abs(named->value) > 9e15)
      return problem(at, "expected an integer, got the constant `{}` of {}", named->name,
                     named->value);
    value = static_cast<int64_t>(named->value);
    if (value < min || value > max)
      return problem(at, "expected an integer from {} to {}, got the constant `{}` of {}", min, max,
                     named->name, value);
  } else if (json.type() == Json::Type::integer) {
    value = json.integer();
  } else if (json.type() == Json::Type::real) {
    return problem(at, "expected an integer from {} to {}, got {:#}", min, max, json.real());
  } else {
    return wrong_type(json, at, "an integer");
  }
  if (value < min || value > max)
    return problem(at, "expected an integer from {} to {}, got {}", min, max, value);
  out = value;
}

void Reader::integers(Json json, const At& at, int64_t min, int64_t max,
                      std::vector<int64_t>& out) {
  list(json, at,
       [&](Json value, const At& here) { integer(value, here, min, max, out.emplace_back(min)); });
  trim(out);
}

void Reader::real(Json json, const At& at, double& out) {
  if (describing()) return schema_->plain({"number", "string"});
  if (json.type() != Json::Type::text) return number(json, at, out);
  if (const Constant* named = constant(json.text()))
    out = named->value;
  else
    problem(at, "expected a number, got `{}`, which names no constant", json.text());
}

void Reader::exactly(int64_t value) {
  schema_->exactly(value);
}

void Reader::number(Json json, const At& at, double& out) {
  if (describing()) return schema_->plain({"number"});
  if (json.type() != Json::Type::integer && json.type() != Json::Type::real)
    return wrong_type(json, at, "a number");
  out = json.real();
}

void Reader::boolean(Json json, const At& at, bool& out) {
  if (describing()) return schema_->plain({"boolean"});
  if (json.type() != Json::Type::boolean) return wrong_type(json, at, "true or false");
  out = json.boolean();
}

void Reader::text(Json json, const At& at, std::string& out) {
  if (describing()) return schema_->plain({"string"});
  std::string_view view;
  if (expect_text(json, at, view)) out = view;
}

void Reader::texts(Json json, const At& at, std::vector<std::string>& out, size_t at_least) {
  list(
      json, at, [&](Json value, const At& here) { text(value, here, out.emplace_back()); },
      at_least);
}

void Reader::name(Json json, const At& at, std::string& out) {
  if (describing()) return schema_->name();
  text(json, at, out);
  if (json.type() == Json::Type::text && out.empty())
    problem(at, "expected a name, got an empty string");
}

std::optional<size_t> Reader::word_at(Json json, const At& at, std::string_view what, Words words) {
  if (describing()) return schema_->words(words), std::nullopt;
  std::string_view word;
  if (!expect_text(json, at, word)) return std::nullopt;
  const auto value = position(words, word);
  if (!value) problem(at, "expected {}, got `{}`", what, word);
  return value;
}

void Reader::param_type(Json json, const At& at, ParamType& out) {
  if (describing()) return schema_->matching(param_type_pattern());
  std::string_view text;
  if (!expect_text(json, at, text)) return;
  if (const auto type = parse_param_type(text))
    out = *type;
  else
    problem(at, "expected a parameter type such as `i32` or `in buffer<bf16>`, got `{}`", text);
}

void Reader::shape(Json json, const At& at, std::vector<Dim>& out) {
  list(json, at, [&](Json value, const At& here) {
    Dim& dim = out.emplace_back();
    if (names_var(value))
      dim.var = value.text();
    else
      integer(value, here, 0, kIntMax, dim.value);
  });
  trim(out);
}

void Reader::expr(Json json, const At& at, Expr& out) {
  if (describing() && !schema_->begin("expr")) return;
  either(
      json, at, [&](Json v, const At& a) { operation(v, a, out); },
      [&](Json v, const At& a) {
        if (names_var(v))
          out = Expr::of_var(std::string(v.text()));
        else
          integer(v, a, 0, kIntMax, out.value);
      });
  if (describing()) schema_->end();
}

void Reader::operation(Json json, const At& at, Expr& out) {
  const auto with_constant = [&](Expr::Op op) {
    return [this, &out, op](Json value, const At& here) {
      out.op = op;
      out.operands.resize(1);
      size_t i = 0;
      list_of(value, here, 2, [&](Json part, const At& there) {
        if (i++ == 0) return expr(part, there, out.operands[0]);
        integer(part, there, 0, kIntMax, out.value);
      });
    };
  };
  const auto sum = [&](Json value, const At& here) {
    out.op = Expr::Op::add;
    out.operands.resize(2);
    size_t i = 0;
    list_of(value, here, 2,
            [&](Json part, const At& there) { expr(part, there, out.operands[i++]); });
  };
  const auto mul = with_constant(Expr::Op::mul), ceil_div = with_constant(Expr::Op::ceil_div);
  object(json, at, "operation",
         {{"mul", Need::one, "an expression times a constant", mul},
          {"add", Need::one, "the sum of two expressions", sum},
          {"ceil_div", Need::one, "an expression over a constant, rounded up", ceil_div}});
}

}  // namespace kern::manifest
